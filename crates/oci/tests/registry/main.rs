//! Images from a registry that others wrote.

#[cfg(test)]
mod real;
