"""Of the package of that name what PyTorch's tests begin with. None of those that run here compares with what it keeps."""

from unittest import TestCase  # noqa: F401
