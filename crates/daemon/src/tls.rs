//! The certificate, read again when it is said to be another.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, RwLock};

use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::TlsAcceptor;

/// Why there is no TLS.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A file is not there or no PEM.
    #[error("cannot read {} as PEM", path.display())]
    Pem {
        /// Which.
        path: PathBuf,
        /// What is wrong with it.
        source: rustls::pki_types::pem::Error,
    },
    /// There is no certificate in it.
    #[error("{} has no certificate in it", path.display())]
    Empty {
        /// Which.
        path: PathBuf,
    },
    /// The two do not belong together, or cannot be used.
    #[error("{} and its key cannot be used", path.display())]
    Refused {
        /// The certificate.
        path: PathBuf,
        /// Why.
        source: rustls::Error,
    },
}

/// What speaks TLS with the certificate that was read last.
#[derive(Debug)]
pub(crate) struct Tls {
    cert: PathBuf,
    key: PathBuf,
    config: RwLock<Arc<ServerConfig>>,
}

impl Tls {
    pub(crate) fn load(cert: PathBuf, key: PathBuf) -> Result<Self, TlsError> {
        let config = RwLock::new(read(&cert, &key)?);
        Ok(Self { cert, key, config })
    }

    /// Reads both files again; connections from now on see what is in them. One that cannot be used changes nothing.
    pub(crate) fn reload(&self) -> Result<(), TlsError> {
        let config = read(&self.cert, &self.key)?;
        *self.config.write().unwrap_or_else(std::sync::PoisonError::into_inner) = config;
        Ok(())
    }

    /// For a new connection.
    pub(crate) fn acceptor(&self) -> TlsAcceptor {
        Arc::clone(&self.config.read().unwrap_or_else(std::sync::PoisonError::into_inner)).into()
    }
}

fn read(cert: &Path, key: &Path) -> Result<Arc<ServerConfig>, TlsError> {
    let pem = |path: &Path| {
        let path = path.to_owned();
        move |source| TlsError::Pem { path: path.clone(), source }
    };
    let chain: Vec<CertificateDer<'static>> =
        CertificateDer::pem_file_iter(cert).and_then(Iterator::collect).map_err(pem(cert))?;
    if chain.is_empty() {
        return Err(TlsError::Empty { path: cert.into() });
    }
    let secret = PrivateKeyDer::from_pem_file(key).map_err(pem(key))?;
    let refused = |source| TlsError::Refused { path: cert.into(), source };
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = ServerConfig::builder_with_provider(provider).with_safe_default_protocol_versions();
    let mut config =
        builder.map_err(refused)?.with_no_client_auth().with_single_cert(chain, secret).map_err(refused)?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(Arc::new(config))
}

/// A connection that ended before it began is nothing to speak of.
pub(crate) fn is_noise(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_used_is_refused_and_what_was_read_stays() {
        let dir = tempfile::tempdir().unwrap();
        let (cert, key) = (dir.path().join("cert"), dir.path().join("key"));
        let made = rcgen::generate_simple_self_signed(vec!["localhost".into()]).unwrap();
        let other = rcgen::generate_simple_self_signed(vec!["localhost".into()]).unwrap();
        std::fs::write(&cert, made.cert.pem()).unwrap();
        std::fs::write(&key, made.signing_key.serialize_pem()).unwrap();
        let tls = Tls::load(cert.clone(), key.clone()).unwrap();
        std::fs::write(&key, other.signing_key.serialize_pem()).unwrap();
        assert!(matches!(tls.reload(), Err(TlsError::Refused { .. })));
        std::fs::write(&cert, "").unwrap();
        assert!(matches!(tls.reload(), Err(TlsError::Empty { .. })));
        drop(tls.acceptor());
        assert!(matches!(Tls::load("/nowhere".into(), key), Err(TlsError::Pem { .. })));
    }
}
