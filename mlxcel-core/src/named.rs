//! Enums whose variants have names.

/// Declares an enum with the name of each variant: `ALL`, `as_str`, and the implementation of `Display`.
#[doc(hidden)]
#[macro_export]
macro_rules! named {
    ($(#[$attribute:meta])* pub enum $type:ident {
        $($(#[$of_variant:meta])* $variant:ident = $name:literal,)*
    }) => {
        $(#[$attribute])*
        pub enum $type {
            $($(#[$of_variant])* $variant,)*
        }

        impl $type {
            /// All variants.
            pub const ALL: [Self; [$(Self::$variant),*].len()] = [$(Self::$variant),*];

            /// The name, in lower case.
            pub fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $name,)*
                }
            }
        }

        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}
