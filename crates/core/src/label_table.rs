//! The macro `label_table!`: labels of the variants of an enum.

/// Defines the labels of an enum's variants: the method `label` and the table of all labels, `LABELS`.
///
/// Labels are the values of metric labels and words in logs and in JSON. They are stable: renaming a variant does not
/// change its label, and `graspd metrics --reference` lists the tables in `docs/metrics.md`.
///
/// ```
/// enum Size { Small, Large { bytes: u64 } }
/// grasp_core::label_table! {
///     /// Returns the label of the size in metrics.
///     Size {
///         Self::Small => "small",
///         Self::Large { .. } => "large",
///     }
/// }
/// assert_eq!(Size::Large { bytes: 1 }.label(), "large");
/// assert_eq!(Size::LABELS, ["small", "large"]);
/// # assert_eq!(Size::Small.label(), "small");
/// ```
#[macro_export]
macro_rules! label_table {
    ($(#[$doc:meta])* $type:ty { $($variant:pat => $label:literal),+ $(,)? }) => {
        impl $type {
            /// All labels, in the order of the variants.
            #[allow(dead_code, reason = "not every table is used outside of tests")]
            pub const LABELS: &'static [&'static str] = &[$($label),+];

            $(#[$doc])*
            #[must_use]
            pub const fn label(&self) -> &'static str {
                match self {
                    $($variant => $label),+
                }
            }
        }
    };
}
