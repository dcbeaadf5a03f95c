//! The NIP-11 document of a remote relay, as far as sync and fetch use it. Pure parsing.

use serde_json::{Map, Value};

use crate::limits;

/// The part of the NIP-11 document of a remote relay that sync and fetch use. Many documents are wrong or malformed: a
/// field of the wrong type counts as absent and does not affect the other fields.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Nip11Info {
    /// Maximum number of subscriptions of one connection.
    pub max_subscriptions: Option<u64>,
    /// Maximum number of filters of one request.
    pub max_filters: Option<u64>,
    /// Largest accepted `limit`.
    pub max_limit: Option<u64>,
    /// Maximum bytes of one message.
    pub max_message_length: Option<u64>,
    /// Maximum bytes of all subscriptions of one connection. Not part of NIP-11; graspd servers state it.
    pub max_subscription_bytes: Option<u64>,
    /// Whether authentication is required.
    pub auth_required: Option<bool>,
    /// Whether `supported_nips` contains 77 (negentropy). `None` if the document has no such list.
    pub negentropy: Option<bool>,
    /// Whether the relay is a GRASP server.
    pub is_grasp: bool,
    /// Whether the relay is a private service (GRASP-08), from which a public one does not sync.
    pub is_private_service: bool,
    /// Id of the server instance, independent of its URL. Sync uses it to recognise this server under another URL.
    pub instance: Option<String>,
    /// Limits for git fetches from the same origin.
    pub git: GitFetchLimits,
}

/// Limits that a server states for git fetches from the same origin, in `limitation.grasp_git`. Zero means that it
/// accepts no fetches. See `docs/design/fetch.md#limits-stated-by-a-server`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct GitFetchLimits {
    /// Concurrent fetches, at most [`limits::MAX_PARSED_GIT_CONCURRENT`].
    pub concurrent: Option<u32>,
    /// Fetches per minute, at most [`limits::MAX_PARSED_GIT_PER_MINUTE`].
    pub per_minute: Option<u32>,
}

impl Nip11Info {
    /// Parses a document. Returns `None` if it is not a JSON object or larger than [`limits::MAX_NIP11_BYTES`].
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        if text.len() > limits::MAX_NIP11_BYTES {
            return None;
        }
        let Value::Object(document) = serde_json::from_str(text).ok()? else { return None };
        let empty = Map::new();
        let limitation = document.get("limitation").and_then(Value::as_object).unwrap_or(&empty);
        let number = |name: &str| limitation.get(name).and_then(Value::as_u64);
        let flag = |name: &str| limitation.get(name).and_then(Value::as_bool);
        let list = |name: &str| document.get(name).and_then(Value::as_array);
        Some(Self {
            max_subscriptions: number("max_subscriptions"),
            max_filters: number("max_filters"),
            max_limit: number("max_limit"),
            max_message_length: number("max_message_length"),
            max_subscription_bytes: number("max_subscription_bytes"),
            auth_required: flag("auth_required"),
            negentropy: list("supported_nips").map(|nips| nips.iter().any(is_77)),
            is_grasp: list("supported_grasps").is_some_and(|grasps| has_grasp(grasps, "GRASP-01")),
            is_private_service: list("supported_grasps").is_some_and(|grasps| has_grasp(grasps, "GRASP-08")),
            instance: document
                .get("instance")
                .and_then(Value::as_str)
                .filter(|name| is_instance(name))
                .map(str::to_owned),
            git: limitation.get("grasp_git").and_then(Value::as_object).map(GitFetchLimits::read).unwrap_or_default(),
        })
    }
}

impl GitFetchLimits {
    fn read(git: &Map<String, Value>) -> Self {
        let number = |name: &str, most: u32| {
            let stated = git.get(name).and_then(Value::as_u64)?;
            Some(u32::try_from(stated).unwrap_or(most).min(most))
        };
        Self {
            concurrent: number("concurrent", limits::MAX_PARSED_GIT_CONCURRENT),
            per_minute: number("per_minute", limits::MAX_PARSED_GIT_PER_MINUTE),
        }
    }
}

/// Returns whether an entry of `supported_nips` is 77. Some documents list the numbers as strings.
fn is_77(nip: &Value) -> bool {
    nip.as_u64() == Some(77) || nip.as_str() == Some("77")
}

/// Returns whether a list of `supported_grasps` contains this document.
fn has_grasp(grasps: &[Value], document: &str) -> bool {
    grasps.iter().filter_map(Value::as_str).any(|grasp| grasp.eq_ignore_ascii_case(document))
}

fn is_instance(name: &str) -> bool {
    (1..=limits::MAX_INSTANCE_ID_BYTES).contains(&name.len())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stating(limitation: &str) -> Nip11Info {
        Nip11Info::parse(&format!("{{\"limitation\":{{{limitation}}}}}")).expect("an object")
    }

    #[test]
    fn complete_document_is_parsed() {
        let nip11 = Nip11Info::parse(
            r#"{"name":"x","supported_nips":[1,11,77],"supported_grasps":["GRASP-06","GRASP-01"],"instance":"ab12",
            "limitation":{"max_subscriptions":50,"max_filters":20,"max_limit":1000,"default_limit":500,
            "max_message_length":524288,"max_subid_length":64,"max_subscription_bytes":5242880,"auth_required":false,
            "payment_required":false,"restricted_writes":true,"grasp_git":{"concurrent":8,"per_minute":120}}}"#,
        );
        let expected = Nip11Info {
            max_subscriptions: Some(50),
            max_filters: Some(20),
            max_limit: Some(1_000),
            max_message_length: Some(524_288),
            max_subscription_bytes: Some(5_242_880),
            auth_required: Some(false),
            negentropy: Some(true),
            is_grasp: true,
            is_private_service: false,
            instance: Some("ab12".to_owned()),
            git: GitFetchLimits { concurrent: Some(8), per_minute: Some(120) },
        };
        assert_eq!(nip11, Some(expected));
    }

    #[test]
    fn field_of_the_wrong_type_is_ignored() {
        let nip11 = Nip11Info::parse(
            r#"{"supported_nips":"77","supported_grasps":{"GRASP-01":true},"instance":7,
            "limitation":{"max_subscriptions":"50","max_filters":-1,"max_limit":1.5,"default_limit":null,
            "max_message_length":[1],"max_subscription_bytes":64,"auth_required":"no","grasp_git":{"concurrent":true,"per_minute":9}}}"#,
        )
        .expect("an object");
        let git = GitFetchLimits { concurrent: None, per_minute: Some(9) };
        assert_eq!(nip11, Nip11Info { max_subscription_bytes: Some(64), git, ..Nip11Info::default() });
        for odd in [r#"{"limitation":7}"#, r#"{"limitation":null}"#, r#"{"limitation":{"grasp_git":[]}}"#, "{}"] {
            assert_eq!(Nip11Info::parse(odd), Some(Nip11Info::default()), "{odd}");
        }
    }

    #[test]
    fn invalid_documents_are_rejected() {
        let large = format!("{{\"name\":\"{}\"}}", "x".repeat(limits::MAX_NIP11_BYTES));
        let deep = "[".repeat(100_000);
        for text in ["", "null", "[]", "7", "<html>", "{\"name\":", large.as_str(), deep.as_str()] {
            assert_eq!(Nip11Info::parse(text), None);
        }
    }

    #[test]
    fn supported_nips_grasps_and_instance_are_parsed() {
        let negentropy =
            |nips: &str| Nip11Info::parse(&format!("{{\"supported_nips\":{nips}}}")).expect("an object").negentropy;
        assert_eq!(negentropy("[1,77]"), Some(true));
        assert_eq!(negentropy("[\"1\",\"77\"]"), Some(true));
        assert_eq!(negentropy("[[77],7,770,\"NIP-77\"]"), Some(false));
        assert_eq!(negentropy("[]"), Some(false));
        assert_eq!(negentropy("77"), None);
        assert!(!Nip11Info::parse(r#"{"supported_grasps":["GRASP-06"]}"#).expect("an object").is_grasp);
        let private = Nip11Info::parse(r#"{"supported_grasps":["GRASP-01","grasp-08"]}"#).expect("an object");
        assert!(private.is_grasp && private.is_private_service);
        let long = "x".repeat(limits::MAX_INSTANCE_ID_BYTES + 1);
        for name in ["", long.as_str()] {
            assert_eq!(Nip11Info::parse(&format!("{{\"instance\":\"{name}\"}}")).expect("an object").instance, None);
        }
    }

    #[test]
    fn stated_git_limits_are_clamped() {
        let git = |text: &str| stating(&format!("\"grasp_git\":{text}")).git;
        for (text, concurrent, per_minute) in [
            (r#"{"concurrent":1000,"per_minute":18446744073709551615}"#, Some(64), Some(6_000)),
            (r#"{"concurrent":1,"per_minute":0}"#, Some(1), Some(0)),
            (r#"{"concurrent":-1}"#, None, None),
            ("[]", None, None),
        ] {
            assert_eq!(git(text), GitFetchLimits { concurrent, per_minute }, "{text}");
        }
    }
}
