//! Named tokens, as digests: who reads this file learns none.

use api::{Scope, TokenInfo};
use rusqlite::{OptionalExtension as _, Row, params};

use super::{Change, Registry, RegistryError, rows};

/// A token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Token {
    pub(crate) info: TokenInfo,
    pub(crate) digest: [u8; 32],
}

impl Registry {
    /// The one with this digest.
    pub(crate) fn token(&self, digest: &[u8; 32]) -> Result<Option<Token>, RegistryError> {
        let connection = self.lock();
        let mut statement = connection.prepare_cached("SELECT * FROM tokens WHERE digest = ?")?;
        Ok(statement.query_row([digest], read).optional()?)
    }

    /// Whether there is one at all.
    pub(crate) fn has_tokens(&self) -> Result<bool, RegistryError> {
        let connection = self.lock();
        let mut statement = connection.prepare_cached("SELECT EXISTS (SELECT 1 FROM tokens)")?;
        Ok(statement.query_row([], |row| row.get(0))?)
    }

    /// All of them.
    pub(crate) fn tokens(&self) -> Result<Vec<Token>, RegistryError> {
        let connection = self.lock();
        let mut statement = connection.prepare_cached("SELECT * FROM tokens ORDER BY name")?;
        Ok(statement.query_map([], read)?.collect::<Result<_, _>>()?)
    }
}

impl Change<'_> {
    /// A new one; false when the name is taken.
    pub(crate) fn add_token(&mut self, token: &Token) -> Result<bool, RegistryError> {
        let TokenInfo { name, scopes, created_at_unix, expires_at_unix } = &token.info;
        let scopes = serde_json::to_string(scopes).expect("words can be written as JSON");
        let sql = "INSERT INTO tokens (name, digest, scopes, created_unix, expires_unix) VALUES (?, ?, ?, ?, ?)
                   ON CONFLICT (name) DO NOTHING";
        let values = params![name, token.digest, scopes, created_at_unix, expires_at_unix];
        Ok(self.tx.prepare_cached(sql)?.execute(values)? > 0)
    }

    /// It is refused from now on; false when there is none.
    pub(crate) fn remove_token(&mut self, name: &str) -> Result<bool, RegistryError> {
        Ok(self.tx.prepare_cached("DELETE FROM tokens WHERE name = ?")?.execute([name])? > 0)
    }
}

fn read(row: &Row<'_>) -> rusqlite::Result<Token> {
    let scopes: Vec<Scope> = rows::from_text(row, "scopes", |text| serde_json::from_str(text).ok())?;
    let info = TokenInfo {
        name: row.get("name")?,
        scopes,
        created_at_unix: row.get("created_unix")?,
        expires_at_unix: row.get("expires_unix")?,
    };
    Ok(Token { info, digest: row.get("digest")? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::registry::testing::registry;

    #[test]
    fn tokens_are_found_by_their_digest() {
        let (_dir, registry) = registry();
        let scopes = vec![Scope::Read, Scope::Exec];
        let info = TokenInfo { name: "ci".into(), scopes, created_at_unix: 1, expires_at_unix: Some(9) };
        let token = Token { info, digest: [7; 32] };
        assert!(registry.change(|change| change.add_token(&token)).unwrap());
        assert!(!registry.change(|change| change.add_token(&token)).unwrap());
        assert_eq!(registry.token(&[7; 32]).unwrap(), Some(token));
        assert_eq!(registry.token(&[8; 32]).unwrap(), None);
        assert!(registry.change(|change| change.remove_token("ci")).unwrap());
        assert!(registry.tokens().unwrap().is_empty());
    }
}
