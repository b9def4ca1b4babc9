//! The C library's heap, from which everything here is allocated.

/// Makes all threads share one heap. By default each thread makes one of its own when it first allocates: address space
/// to be mapped and cut to size, and pages of its own, for a vCPU's thread that allocates next to nothing. False when the
/// library does not know how.
pub(crate) fn share() -> bool {
    // SAFETY: only a number of the allocator's is set.
    unsafe { libc::mallopt(libc::M_ARENA_MAX, 1) == 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_library_knows_how() {
        assert!(share());
    }
}
