//! What the system lets this process have.

use rustix::io;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Takes as many descriptors as the system allows: the vsock's connections alone can be as many as the usual limit,
/// which is kept low only for programs that call `select`.
pub(crate) fn raise_descriptors() -> io::Result<()> {
    let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_limit_is_as_high_as_the_system_allows() {
        let Rlimit { maximum, .. } = getrlimit(Resource::Nofile);
        // One less than allowed: no other test in this process notices.
        let current = maximum.map(|maximum| maximum - 1);
        setrlimit(Resource::Nofile, Rlimit { current, maximum }).unwrap();
        raise_descriptors().unwrap();
        assert_eq!(getrlimit(Resource::Nofile), Rlimit { current: maximum, maximum });
    }
}
