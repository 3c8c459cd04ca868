//! Users and passwords.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use ring::hmac;
use ring::rand::SystemRandom;
use std::cell::RefCell;
use std::collections::{BTreeMap, HashMap};
use tokio::sync::Mutex;

/// Highest cost of a hash: each step doubles the time, and this cost takes about ten seconds.
const MOST_COST: u32 = 17;

/// Users with the hashes of their passwords.
pub(super) struct Users {
    hashes: BTreeMap<String, String>,
    /// Hash that is compared for an unknown user, so that the answer takes equally long.
    nobody: String,
    /// The password that was right for each user, by a cheap hash that is meaningless elsewhere.
    right: RefCell<HashMap<String, hmac::Tag>>,
    key: hmac::Key,
    /// One password is compared at a time.
    turn: Mutex<()>,
}

impl Users {
    /// # Errors
    /// Names the user whose hash is invalid.
    pub(super) fn new(hashes: BTreeMap<String, String>) -> Result<Self, String> {
        let mut most = 0;
        for (user, hash) in &hashes {
            if user.is_empty() || user.contains(':') {
                return Err(format!("{user:?} can be no user's name: it is empty or has a colon"));
            }
            let parts: Option<bcrypt::HashParts> = hash.parse().ok().filter(|_| is_whole(hash));
            let Some(parts) = parts else {
                return Err(format!("the hash of {user} is no bcrypt hash; htpasswd -nBC 10 {user} makes one"));
            };
            if parts.get_cost() > MOST_COST {
                return Err(format!("the hash of {user} has cost {}; allowed: at most {MOST_COST}", parts.get_cost()));
            }
            most = most.max(parts.get_cost());
        }
        let key = hmac::Key::generate(hmac::HMAC_SHA256, &SystemRandom::new()).map_err(|_| "there is no randomness")?;
        // The hash of no known password.
        let nobody = format!("$2b${most:02}$.....................................................");
        Ok(Self { hashes, nobody, right: RefCell::default(), key, turn: Mutex::default() })
    }

    /// True if clients must authenticate.
    pub(super) fn are_there(&self) -> bool {
        !self.hashes.is_empty()
    }

    /// True if an authorization header has a user and the right password. The first check costs a hash on another
    /// thread, one client after another.
    pub(super) async fn are_right(&self, header: Option<&[u8]>) -> bool {
        let Some((user, password)) = header.and_then(parsed) else { return false };
        let words = [user.as_bytes(), b":", password.as_bytes()].concat();
        let known = self.right.borrow().get(&user).copied();
        if known.is_some_and(|tag| hmac::verify(&self.key, &words, tag.as_ref()).is_ok()) {
            return true;
        }
        let (is_user, hash) = match self.hashes.get(&user) {
            Some(hash) => (true, hash.clone()),
            None => (false, self.nobody.clone()),
        };
        let compare = move || bcrypt::verify(password, &hash).unwrap_or(false);
        let _turn = self.turn.lock().await;
        let right = tokio::task::spawn_blocking(compare).await.unwrap_or(false) && is_user;
        if right {
            self.right.borrow_mut().insert(user, hmac::sign(&self.key, &words));
        }
        right
    }
}

/// True if passwords can be compared with this hash.
fn is_whole(hash: &str) -> bool {
    hash.len() == 60 && hash.is_ascii()
}

/// Parses user and password of `Basic …`.
fn parsed(header: &[u8]) -> Option<(String, String)> {
    let (scheme, rest) = std::str::from_utf8(header).ok()?.split_once(' ')?;
    let text = scheme.eq_ignore_ascii_case("basic").then(|| STANDARD.decode(rest.trim()).ok())??;
    let (user, password) = std::str::from_utf8(&text).ok()?.split_once(':')?;
    Some((user.to_owned(), password.to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_header_is_a_user_and_a_password_or_nothing() {
        assert_eq!(parsed(b"Basic YWxpY2U6YTpi"), Some(("alice".into(), "a:b".into())));
        for header in
            [&b"Basic"[..], b"Basic ", b"Basic !!!", b"Bearer YWxpY2U6YTpi", b"\xff\xff \xff", b"Basic YWxpY2U="]
        {
            assert_eq!(parsed(header), None, "{header:?}");
        }
    }

    #[test]
    fn hashes_have_to_be_hashes() {
        let of = |user: &str, hash: &str| Users::new(BTreeMap::from([(user.to_owned(), hash.to_owned())]));
        let good = bcrypt::hash("secret", 4).unwrap();
        assert!(of("alice", &good).is_ok_and(|users| users.are_there()));
        assert!(
            bcrypt::verify("x", &of("alice", &good).unwrap().nobody).is_ok_and(|right| !right),
            "nobody's is a hash"
        );
        for (user, hash, why) in [
            ("alice", "secret".to_owned(), "no bcrypt hash"),
            ("alice", good[..50].to_owned(), "no bcrypt hash"),
            ("alice", good.replace("$04$", "$31$"), "cost 31; allowed: at most 17"),
            ("a:b", good.clone(), "has a colon"),
        ] {
            let said = of(user, &hash).err().unwrap_or_default();
            assert!(said.contains(why), "{hash}: {said}");
            assert!(!said.contains(&hash), "a secret is shown: {said}");
        }
    }
}
