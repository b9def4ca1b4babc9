//! Kernels that are there to be had and must not be given to guests: each of them dies of everyday work.

/// A kernel that is not taken unless somebody says `--kernel`.
struct Broken {
    /// What its releases begin with.
    release: &'static str,
    /// And what they end with, whatever flavour they are of.
    arch: &'static str,
    /// What is wrong with it.
    why: &'static str,
}

const BROKEN: &[Broken] = &[Broken {
    release: "6.1.0-55-",
    arch: "amd64",
    why: "ext4 follows a null pointer as soon as memory was short (Debian's 6.1.192-1)",
}];

/// Why this release is not taken, if it is not.
pub(super) fn why(release: &str) -> Option<&'static str> {
    let is_meant = |broken: &&Broken| release.starts_with(broken.release) && release.ends_with(broken.arch);
    BROKEN.iter().find(is_meant).map(|broken| broken.why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_flavours_are_known_and_no_other_release() {
        assert!(why("6.1.0-55-cloud-amd64").is_some() && why("6.1.0-55-amd64").is_some());
        for good in [
            "6.1.0-54-cloud-amd64",
            "6.1.0-5-amd64",
            "6.1.0-550-amd64",
            "6.1.0-55-generic",
            "6.12.117+deb12-cloud-amd64",
        ] {
            assert_eq!(why(good), None, "{good}");
        }
    }
}
