//! The stories are in `tests/`; see ../README.md.
