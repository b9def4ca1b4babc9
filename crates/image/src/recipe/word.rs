//! What the small types of a recipe have in common: text that was looked at once, and cannot be anything else after.

/// A type around text: made by its `FromStr` alone, which serde uses too. The pattern is what the schema says of it: it
/// takes all that the type takes, and a little more where a pattern cannot say it.
macro_rules! checked_text {
    ($(#[$doc:meta])* $name:ident, $error:ty, $pattern:expr) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, serde::Deserialize)]
        #[serde(try_from = "String")]
        pub struct $name(Box<str>);

        impl $name {
            /// It as text.
            #[must_use]
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl TryFrom<String> for $name {
            type Error = $error;

            fn try_from(text: String) -> Result<Self, $error> {
                text.parse()
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(&self.0)
            }
        }

        $crate::recipe::word::described! { $name, { "type": "string", "pattern": $pattern } }
    };
}

/// What the schema says of a type.
macro_rules! described {
    ($name:ty, $schema:tt) => {
        #[cfg(test)]
        impl schemars::JsonSchema for $name {
            fn inline_schema() -> bool {
                true
            }

            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($name).into()
            }

            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                schemars::json_schema!($schema)
            }
        }
    };
}

pub(super) use {checked_text, described};
