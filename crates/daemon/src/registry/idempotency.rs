//! Requests that must happen once, however often they are sent.

use rusqlite::{OptionalExtension as _, params};

use super::{Change, Registry, RegistryError};

/// How long an answer is kept, in seconds.
const KEPT_SECS: u64 = 24 * 60 * 60;
/// How much of them is kept. With more than that, the oldest go earlier.
const KEPT_BYTES: u64 = 256 << 20;

/// What is known about a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Before {
    /// It is new, and taken now.
    Nothing,
    /// It is under way.
    UnderWay,
    /// It was another request.
    Another,
    /// It was answered.
    Answered {
        /// The status.
        status: u16,
        /// The body.
        body: String,
    },
}

impl Registry {
    /// Takes a key, unless it was there before.
    pub(crate) fn take_key(&self, token: &str, key: &str, digest: &[u8]) -> Result<Before, RegistryError> {
        self.change(|change| {
            let oldest = change.now.saturating_sub(KEPT_SECS);
            change.tx.prepare_cached("DELETE FROM idempotency WHERE created_unix < ?")?.execute([oldest])?;
            let sql = "SELECT digest, status, body FROM idempotency WHERE token = ? AND key = ?";
            let found = change.tx.prepare_cached(sql)?.query_row([token, key], |row| {
                Ok((row.get::<_, Vec<u8>>(0)?, row.get::<_, Option<u16>>(1)?, row.get::<_, Option<String>>(2)?))
            });
            match found.optional()? {
                Some((was, _, _)) if was != digest => Ok(Before::Another),
                Some((_, Some(status), Some(body))) => Ok(Before::Answered { status, body }),
                Some(_) => Ok(Before::UnderWay),
                None => {
                    let sql = "INSERT INTO idempotency (token, key, digest, created_unix) VALUES (?, ?, ?, ?)";
                    change.tx.prepare_cached(sql)?.execute(params![token, key, digest, change.now])?;
                    Ok(Before::Nothing)
                }
            }
        })
    }

    /// It failed, or was never finished: the same may be tried again.
    pub(crate) fn release_key(&self, token: &str, key: &str) -> Result<(), RegistryError> {
        self.change(|change| {
            let sql = "DELETE FROM idempotency WHERE token = ? AND key = ? AND status IS NULL";
            change.tx.prepare_cached(sql)?.execute([token, key])?;
            Ok(())
        })
    }

    /// Whoever was under way when the daemon was killed is not any more.
    pub(crate) fn release_all_keys(&self) -> Result<(), RegistryError> {
        self.change(|change| Ok(change.tx.execute_batch("DELETE FROM idempotency WHERE status IS NULL")?))
    }
}

impl Change<'_> {
    /// How it was answered, for all who ask again.
    pub(crate) fn answer_key(&mut self, token: &str, key: &str, status: u16, body: &str) -> Result<(), RegistryError> {
        self.answer_key_within(KEPT_BYTES, (token, key), status, body)
    }

    fn answer_key_within(
        &mut self,
        kept_bytes: u64,
        (token, key): (&str, &str),
        status: u16,
        body: &str,
    ) -> Result<(), RegistryError> {
        // Each has the length of all up to it, so that nobody needs to add them up.
        let sql = "SELECT coalesce(max(bytes_until), 0) FROM idempotency WHERE bytes_until IS NOT NULL";
        let before: u64 = self.tx.prepare_cached(sql)?.query_row([], |row| row.get(0))?;
        let until = before.saturating_add(body.len() as u64);
        let sql = "UPDATE idempotency SET status = ?, body = ?, bytes_until = ? WHERE token = ? AND key = ?";
        self.tx.prepare_cached(sql)?.execute(params![status, body, until, token, key])?;
        let sql = "DELETE FROM idempotency WHERE bytes_until < ?";
        self.tx.prepare_cached(sql)?.execute([until.saturating_sub(kept_bytes)])?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::testing::registry;

    #[test]
    fn a_key_is_one_request_of_one_token() {
        let (_dir, registry) = registry();
        let take = |token, key, digest: &[u8]| registry.take_key(token, key, digest).unwrap();
        assert_eq!(take("t", "k", b"1"), Before::Nothing);
        assert_eq!(take("t", "k", b"1"), Before::UnderWay);
        assert_eq!(take("t", "k", b"2"), Before::Another);
        assert_eq!(take("u", "k", b"2"), Before::Nothing);
        registry.change(|change| change.answer_key("t", "k", 201, "[]")).unwrap();
        assert_eq!(take("t", "k", b"1"), Before::Answered { status: 201, body: "[]".into() });
        registry.release_key("t", "k").unwrap();
        assert_eq!(take("t", "k", b"1"), Before::Answered { status: 201, body: "[]".into() }, "it was answered");
        registry.release_all_keys().unwrap();
        assert_eq!(take("u", "k", b"2"), Before::Nothing, "it may be tried again");
    }

    #[test]
    fn no_more_is_kept_than_there_is_room_for() {
        let (_dir, registry) = registry();
        for key in ["old", "new", "newer"] {
            assert_eq!(registry.take_key("t", key, b"1").unwrap(), Before::Nothing);
            registry.change(|change| change.answer_key_within(7, ("t", key), 201, "1234")).unwrap();
        }
        let is_kept = |key| registry.take_key("t", key, b"1").unwrap() != Before::Nothing;
        assert_eq!(["newer", "new", "old"].map(is_kept), [true, true, false]);
        let sql = "EXPLAIN QUERY PLAN DELETE FROM idempotency WHERE created_unix < 1";
        let plan: String = registry.lock().query_row(sql, [], |row| row.get("detail")).unwrap();
        assert!(plan.contains("idempotency_by_time"), "{plan}");
    }
}
