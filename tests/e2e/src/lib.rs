//! The VM tests are the test program of this package (`main.rs`); as a library there is nothing here.
