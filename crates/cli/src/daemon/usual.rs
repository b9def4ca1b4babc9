//! The address where published clients look for a daemon, and whose it is that listens there.

use std::fs;

use client::Endpoint;

/// Where it is.
const ADDRESS: &str = "http://127.0.0.1:8889";
const PORT: u16 = 8889;
/// The addresses that reach it, as the kernel writes them: loopback, and all of them.
const REACHED_BY: [&str; 2] = ["0100007F", "00000000"];
/// A socket that listens, in the same table.
const LISTENS: &str = "0A";

/// The address, if root or this user listens there. Nobody else is told what this user does, nor given a token.
pub(super) fn listener() -> Option<Endpoint> {
    // Without the table nobody is known to listen.
    let table = fs::read_to_string("/proc/net/tcp").ok()?;
    listens(&table, rustix::process::geteuid().as_raw()).then(|| Endpoint::Url(ADDRESS.into()))
}

fn listens(table: &str, user: u32) -> bool {
    let port = format!("{PORT:04X}");
    table.lines().skip(1).any(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let [_, local, _, state, _, _, _, owner, ..] = fields[..] else { return false };
        let is_there = local.split_once(':').is_some_and(|(at, its)| REACHED_BY.contains(&at) && its == port);
        is_there && state == LISTENS && owner.parse().is_ok_and(|owner: u32| owner == 0 || owner == user)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_root_and_the_user_are_believed() {
        let table = |local: &str, state: &str, owner: u32| {
            format!(
                "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n   \
                 0: 0100007F:0016 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 1 1 x\n   \
                 1: {local} 00000000:0000 {state} 00000000:00000000 00:00000000 00000000  {owner}        0 2 1 x\n"
            )
        };
        assert!(listens(&table("0100007F:22B9", "0A", 0), 1000));
        assert!(listens(&table("00000000:22B9", "0A", 1000), 1000));
        assert!(!listens(&table("0100007F:22B9", "0A", 1001), 1000), "another user's");
        assert!(!listens(&table("0100007F:22B9", "01", 0), 1000), "a connection");
        assert!(!listens(&table("0200007F:22B9", "0A", 0), 1000), "another address");
        assert!(!listens(&table("0100007F:22BA", "0A", 0), 1000), "another port");
        assert!(!listens("", 0) && !listens("x\ny\n", 0));
    }
}
