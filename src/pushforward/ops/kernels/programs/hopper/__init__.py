"""The code of the kernels for GPUs of compute capability 9.0, in Gluon."""
