#!/usr/bin/env python3
"""Writes scikit-learn's 1797 handwritten digits for digits.c: 65 bytes an image,
its 64 pixels (0 to 16) row by row and its label, in a fixed random order.

    digits-data.py digits.bin
"""

import sys

import numpy
from sklearn.datasets import load_digits

if len(sys.argv) != 2:
    sys.exit("usage: digits-data.py FILE")
digits = load_digits()
rows = numpy.column_stack([digits.data, digits.target]).astype(numpy.uint8)
numpy.random.default_rng(1797).permutation(rows).tofile(sys.argv[1])
