r"""A small language for loops over vectors, compiled by LLVM for the processor at hand.

A `Program` writes the instructions of one function as text, and `llvmlite` (the compiler of numba,
without numba) turns them into machine code. Loops of Python that run while a program is written
are unrolled, and what they compute becomes constants. Nothing is left to a vectoriser: a `Value`
of kind `"vec"` is a register.

Numbers are float32 or float64. A function takes one pointer to a table of 64-bit integers, in
which the caller puts addresses and sizes. Other threads of Python run meanwhile.
"""

from __future__ import annotations

import ctypes
import struct
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from itertools import count
from types import ModuleType

MISSING = (
    "`impl='fused'` compiles its loops with llvmlite, which is not installed. Install it by "
    "`pip install pushforward[fast]`, or use `impl='streamed'`."
)


@dataclass(frozen=True)
class Machine:
    """Registers of a processor: their size in bytes, and how many vectors make a row tile."""

    register: int
    vectors: int
    name: str
    features: str


@cache
def available() -> bool:
    """Whether loops can be compiled here: llvmlite, and a processor with fused multiply-add."""
    return _installed() and _machine() is not None


def machine() -> Machine:
    """The processor at hand, or an error that says what is missing."""
    if not _installed():
        raise ModuleNotFoundError(MISSING)
    found = _machine()
    if found is None:
        raise NotImplementedError(
            "`impl='fused'` needs a processor with fused multiply-add (x86 with AVX2, or 64-bit "
            "ARM), which this one has not. Use `impl='streamed'`."
        )
    return found


def _installed() -> bool:
    try:
        return find_spec("llvmlite") is not None
    except (ImportError, ValueError):  # somebody keeps it from being imported
        return False


@cache
def _machine() -> Machine | None:
    llvm = _llvm()
    name, features = llvm.get_host_cpu_name(), llvm.get_host_cpu_features()
    if features.get("avx512f") and features.get("avx512dq"):
        size = 64, 4
    elif features.get("avx2") and features.get("fma"):
        size = 32, 3
    elif llvm.get_default_triple().startswith(("aarch64", "arm64")):
        size = 16, 4
    else:
        return None
    return Machine(*size, name, features.flatten())


@cache
def _llvm() -> ModuleType:
    llvm = import_module("llvmlite.binding")
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    return llvm


@dataclass(frozen=True)
class Value:
    """A register of a program, with its kind: `"i64"`, `"num"`, `"vec"`, `"mask"`, ..."""

    program: Program
    name: str
    kind: str

    def __add__(self, other: Value | float) -> Value:
        return self.program.binary("add", self, other)

    def __sub__(self, other: Value | float) -> Value:
        return self.program.binary("sub", self, other)

    def __mul__(self, other: Value | float) -> Value:
        return self.program.binary("mul", self, other)

    def __floordiv__(self, other: Value | float) -> Value:
        return self.program.binary("div", self, other)

    def __mod__(self, other: Value | float) -> Value:
        return self.program.binary("rem", self, other)

    def __truediv__(self, other: Value | float) -> Value:
        return self.program.binary("div", self, other)


@dataclass(frozen=True)
class Variable:
    """A variable of the compiled program, with a place in memory."""

    program: Program
    place: Value
    kind: str

    def get(self) -> Value:
        """Read the variable."""
        return self.program.read(self.place, self.kind)

    def set(self, value: Value) -> None:
        """Write the variable."""
        self.program.write(value, self.place)


@dataclass(frozen=True)
class Compiled:
    """A compiled function of the address of a table.

    `width` is the number of rows in a tile and `scratch` the number of numbers it needs room for.
    The machine code lives as long as `engine`.
    """

    run: Callable[[int], None]
    width: int
    scratch: int
    engine: object


class Program(ABC):
    """The text of one function, written instruction by instruction.

    Args:
        bits: 32 or 64, of the numbers.
        machine: the processor it is for.
    """

    def __init__(self, bits: int, machine: Machine) -> None:
        self.bits, self.machine = bits, machine
        self.lanes = machine.register * 8 // bits
        self.vectors = machine.vectors
        self.width = self.lanes * self.vectors
        self.bytes = bits // 8
        number = "float" if bits == 32 else "double"
        wide = lambda kind: f"<{self.lanes} x {kind}>"
        self.kinds = {
            "i64": "i64", "num": number, "vec": wide(number), "ints": wide(f"i{bits}"),
            "mask": wide("i1"), "bool": "i1", "ptr": "ptr", "int": f"i{bits}",
        }  # fmt: skip
        self._names = count()
        self._places: list[str] = []
        self._lines: list[str] = []
        self._intrinsics: set[str] = set()
        self.table = Value(self, "%table", "ptr")

    def op(self, kind: str, text: str) -> Value:
        """An instruction with a result."""
        name = f"%x{next(self._names)}"
        self._lines.append(f"  {name} = {text}")
        return Value(self, name, kind)

    def constant(self, number: float, kind: str) -> Value:
        """A constant: one number, or a vector of equal numbers."""
        if kind in ("i64", "int"):
            return Value(self, str(int(number)), kind)
        if kind == "ints":
            text = f"i{self.bits} {int(number)}"
        else:
            if self.bits == 32:
                number = struct.unpack("f", struct.pack("f", number))[0]
            text = f"0x{struct.unpack('<Q', struct.pack('<d', number))[0]:016X}"
            if kind == "num":
                return Value(self, text, kind)
            text = f"{self.kinds['num']} {text}"
        return Value(self, "<" + ", ".join([text] * self.lanes) + ">", kind)

    def number(self, value: Value | int) -> Value:
        """An integer of Python as a value."""
        return value if isinstance(value, Value) else self.constant(value, "i64")

    def integer(self, value: Value) -> Value:
        """An index in as many bits as a number has."""
        if self.bits == 64:
            return Value(self, value.name, "int")
        return self.op("int", f"trunc {self.typed(value)} to i{self.bits}")

    def ramp(self, first: Value) -> Value:
        """The integers from `first` on, one in each lane."""
        lanes = ", ".join(f"i{self.bits} {i}" for i in range(self.lanes))
        return self.splat(self.integer(first)) + Value(self, f"<{lanes}>", "ints")

    def typed(self, value: Value) -> str:
        """Type and name of a value, as LLVM writes an operand."""
        return f"{self.kinds[value.kind]} {value.name}"

    def binary(self, what: str, a: Value, b: Value | float) -> Value:
        """An operation on two values by its name: `"add"`, `"sub"`, `"mul"`, `"div"`, `"rem"`."""
        if not isinstance(b, Value):
            b = self.constant(b, a.kind)
        real = a.kind in ("num", "vec")
        verb = f"f{what}" if real else {"div": "udiv", "rem": "urem"}.get(what, what)
        return self.op(a.kind, f"{verb} {self.typed(a)}, {b.name}")

    def fma(self, a: Value, b: Value, c: Value) -> Value:
        """$ab+c$ with one rounding."""
        return self._call("fma", a, b, c)

    def root(self, x: Value) -> Value:
        """The square root."""
        return self._call("sqrt", x)

    def _call(self, name: str, *args: Value) -> Value:
        kind = self.kinds[args[0].kind]
        mangled = f"@llvm.{name}.v{self.lanes}f{self.bits}"
        self._intrinsics.add(f"declare {kind} {mangled}({', '.join([kind] * len(args))})")
        return self.op("vec", f"call {kind} {mangled}({', '.join(map(self.typed, args))})")

    def compare(self, how: str, a: Value, b: Value) -> Value:
        """A mask, or a truth value: `olt` and its like for numbers, `slt` for integers."""
        verb = "fcmp" if a.kind in ("num", "vec") else "icmp"
        kind = "mask" if a.kind in ("vec", "ints") else "bool"
        return self.op(kind, f"{verb} {how} {self.typed(a)}, {b.name}")

    def select(self, condition: Value, a: Value, b: Value) -> Value:
        """The first where the condition holds, the second elsewhere."""
        return self.op(a.kind, f"select {self.typed(condition)}, {self.typed(a)}, {self.typed(b)}")

    def larger(self, a: Value, b: Value) -> Value:
        """The larger of two; the second where one of them is NaN."""
        how = "ogt" if a.kind in ("num", "vec") else "sgt"
        return self.select(self.compare(how, a, b), a, b)

    def smaller(self, a: Value, b: Value) -> Value:
        """The smaller of two integers."""
        return self.select(self.compare("slt", a, b), a, b)

    def splat(self, value: Value) -> Value:
        """A vector of one number."""
        kind = "vec" if value.kind == "num" else "ints"
        of = self.kinds[kind]
        first = self.op(kind, f"insertelement {of} poison, {self.typed(value)}, i64 0")
        zeros = f"<{self.lanes} x i32> zeroinitializer"
        return self.op(kind, f"shufflevector {of} {first.name}, {of} poison, {zeros}")

    def at(self, base: Value, index: Value | int, size: int | None = None) -> Value:
        """The address of an entry; entries are numbers unless their size is given."""
        offset = self.number(index) * (self.bytes if size is None else size)
        return self.op("ptr", f"getelementptr i8, ptr {base.name}, {self.typed(offset)}")

    def read(self, place: Value, kind: str = "num") -> Value:
        """The number at an address in memory."""
        return self.op(
            kind, f"load {self.kinds[kind]}, ptr {place.name}, align {self._align(kind)}"
        )

    def write(self, value: Value, place: Value) -> None:
        """Put a value at an address."""
        align = self._align(value.kind)
        self._lines.append(f"  store {self.typed(value)}, ptr {place.name}, align {align}")

    def _align(self, kind: str) -> int:
        return 8 if kind in ("i64", "ptr") else self.bytes

    def argument(self, index: int, kind: str) -> Value:
        """An entry of the caller's table: an integer, or an address."""
        return self.read(self.at(self.table, index, 8), kind)

    def variable(self, value: Value) -> Variable:
        """A variable with its first value."""
        name = f"%p{next(self._names)}"
        self._places.append(f"  {name} = alloca {self.kinds[value.kind]}")
        made = Variable(self, Value(self, name, "ptr"), value.kind)
        made.set(value)
        return made

    @contextmanager
    def loop(self, start: Value | int, stop: Value, step: int = 1) -> Iterator[Value]:
        """Repeat what is written inside, for each index from `start` to before `stop`."""
        index = self.variable(self.number(start))
        head, body, after = (f"{name}{next(self._names)}" for name in ("head", "body", "after"))
        self._lines += [f"  br label %{head}", f"{head}:"]
        now = index.get()
        more = self.compare("slt", now, stop)
        self._lines += [f"  br i1 {more.name}, label %{body}, label %{after}", f"{body}:"]
        yield now
        index.set(now + step)
        self._lines += [f"  br label %{head}", f"{after}:"]

    @contextmanager
    def when(self, condition: Value) -> Iterator[None]:
        """Do what is written inside if the condition holds."""
        body, after = (f"{name}{next(self._names)}" for name in ("body", "after"))
        self._lines += [f"  br i1 {condition.name}, label %{body}, label %{after}", f"{body}:"]
        yield
        self._lines += [f"  br label %{after}", f"{after}:"]

    def exp(self, x: Value) -> Value:
        r"""The exponential of a vector of numbers that are at most 0, or a little above.

        $e^x=2^n2^r$ with $n$ the integer nearest to $x\log_2e$. Adding and subtracting a large
        number rounds to $n$, and leaves $n$ in the last bits. A shift makes $2^n$ of it.
        $2^r$ is a minimax polynomial with value 1 at 0, so that $e^0=1$. Below the smallest normal
        number the result is 0; NaN stays NaN.
        """
        vec = lambda number: self.constant(number, "vec")
        mantissa, bias, lowest = (23, 127, -88.0) if self.bits == 32 else (52, 1023, -709.0)
        rounder = vec(1.5 * 2.0**mantissa + bias)
        x = self.larger(vec(lowest), x)
        shifted = self.fma(x, vec(LOG2_E), rounder)
        r = self.fma(x, vec(LOG2_E), rounder - shifted)
        if self.bits == 64:  # the rest of log2(e), which does not fit into one number
            r = self.fma(x, vec(LOG2_E_REST), r)
        first, *others = reversed((1.0, *EXP2[self.bits]))
        power = vec(first)
        for c in others:
            power = self.fma(power, r, vec(c))
        bits = self.op("ints", f"bitcast {self.typed(shifted)} to {self.kinds['ints']}")
        bits = self.op("ints", f"shl {self.typed(bits)}, {self.constant(mantissa, 'ints').name}")
        return power * self.op("vec", f"bitcast {self.typed(bits)} to {self.kinds['vec']}")

    @abstractmethod
    def room(self) -> int:
        """How many numbers of scratch memory the function needs."""

    def compiled(self) -> Compiled:
        """Compile the function."""
        text = "\n".join([
            *sorted(self._intrinsics), 'define void @run(ptr noalias %table) "nounwind" {',
            *self._places, *self._lines, "  ret void", "}",
        ])  # fmt: skip
        llvm = _llvm()
        module = llvm.parse_assembly(text)
        target = llvm.Target.from_default_triple().create_target_machine(
            cpu=self.machine.name, features=self.machine.features, opt=3, jit=True
        )
        options = llvm.create_pipeline_tuning_options(speed_level=2)
        options.loop_vectorization = options.slp_vectorization = options.loop_unrolling = False
        builder = llvm.create_pass_builder(target, options)
        builder.getModulePassManager().run(module, builder)
        engine = llvm.create_mcjit_compiler(module, target)
        engine.finalize_object()
        run = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(engine.get_function_address("run"))
        return Compiled(run, self.width, self.room(), engine)


LOG2_E = 1.4426950408889634
LOG2_E_REST = 2.0355273740931033e-17
EXP2 = {
    32: (0.693147214968, 0.240226527829, 0.0555031055061, 0.00961769297124, 0.00134066440484,
         0.000155946785456),
    64: (0.69314718055994569675, 0.24022650695910098007, 0.055504108664790394314,
         0.0096181291076070022159, 0.0013333558153440004955, 0.00015403530441572405925,
         0.000015252727385169286183, 1.3215442675161573704e-6, 1.0180647664147203915e-7,
         7.0725704465055365345e-9, 4.0780719354515401327e-10),
}  # fmt: skip
r"""Coefficients of $2^r-1$ on $|r|\le1/2$; relative errors 2.6e-9 and 1.8e-17."""
