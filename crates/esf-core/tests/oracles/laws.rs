//! The laws that hold for every search.
