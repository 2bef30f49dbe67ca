//! Who has which quota: limits are a token's at a server, however many repositories are read with it. Without a token
//! they are this machine's. A server that is reached by another proxy, or believed by another authority, is another one: whoever
//! names these could answer for it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError, Weak};

use sha2::{Digest, Sha256};
use url::Url;

use super::super::{Access, Credentials};
use super::State;
use crate::core::digest::hex;

/// Limits by server and token. Clones share them.
#[derive(Clone, Default)]
pub struct Quotas(Arc<Mutex<HashMap<String, Weak<Mutex<State>>>>>);

impl Quotas {
    /// What is known of these credentials at the server; shared by all who have the same.
    pub(in super::super) fn of(&self, server: &Url, access: &Access) -> Arc<Mutex<State>> {
        let key = key(server, access);
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(state) = all.get(&key).and_then(Weak::upgrade) {
            return state;
        }
        // Sources that were closed leave nothing behind.
        all.retain(|_, state| state.strong_count() > 0);
        let state = Arc::default();
        all.insert(key, Arc::downgrade(&state));
        state
    }
}

/// A digest: the token itself is kept where it is used, and nowhere else.
fn key(server: &Url, access: &Access) -> String {
    let mut digest = Sha256::new();
    digest.update(server.origin().ascii_serialization());
    digest.update([0, u8::from(access.credentials.is_some())]);
    // A token is the same whatever name it is given with.
    let credentials = access.credentials.clone().map(|credentials| Credentials { username: None, ..credentials });
    Access { credentials, ..access.clone() }.digest(&mut digest);
    hex(&digest.finalize())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_has_one_quota_at_each_server() {
        let quotas = Quotas::default();
        let token = |user: Option<&str>, password: &str| Credentials {
            username: user.map(ToOwned::to_owned),
            password: Some(password.to_owned()),
            ..Credentials::default()
        };
        let access =
            |credentials: Option<&Credentials>| Access { credentials: credentials.cloned(), ..Access::default() };
        let of = |url: &str, credentials: Option<&Credentials>| quotas.of(&url.parse().unwrap(), &access(credentials));
        let first = of("https://a.example.com/api/v3", Some(&token(None, "hunter2")));
        for (url, credentials, same) in [
            ("https://a.example.com/other", Some(token(None, "hunter2")), true),
            ("https://a.example.com", Some(token(Some("git"), "hunter2")), true),
            ("https://a.example.com:8443", Some(token(None, "hunter2")), false),
            ("https://b.example.com", Some(token(None, "hunter2")), false),
            ("https://a.example.com", Some(token(None, "hunter3")), false),
            ("https://a.example.com", None, false),
        ] {
            assert_eq!(Arc::ptr_eq(&first, &of(url, credentials.as_ref())), same, "{url} {same}");
        }
        // Who chooses by whom a server is reached and believed answers for it.
        let mut own = access(Some(&token(None, "hunter2")));
        own.tls.authorities = Some("PEM".to_owned());
        assert!(!Arc::ptr_eq(&first, &quotas.of(&"https://a.example.com".parse().unwrap(), &own)));
        drop(first);
        of("https://d.example.com", None);
        assert_eq!(quotas.0.lock().unwrap().len(), 1, "what nobody has any more is kept");
        let key = key(&"https://a.example.com".parse().unwrap(), &access(Some(&token(None, "hunter2"))));
        assert!(!key.contains("hunter2"));
    }
}
