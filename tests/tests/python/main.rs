//! Programs of Python.

mod frames;
