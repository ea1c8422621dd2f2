"""The code of the kernels, in the language of Triton."""
