//! Methods of options that set a field each.

/// Declares methods that set one field each, `with_field(value: Type) => field = value;`, inside the `impl`
/// block of a type of options.
#[doc(hidden)]
#[macro_export]
macro_rules! setters {
    ($($(#[$doc:meta])* $with:ident($($value:ident: $type:ty),*) => $field:ident = $set:expr;)*) => {$(
        $(#[$doc])*
        #[must_use]
        pub fn $with(mut self $(, $value: $type)*) -> Self {
            self.$field = $set;
            self
        }
    )*};
}
