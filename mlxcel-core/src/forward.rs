//! Implementations of traits for pointers.

/// Implements a trait for pointers to what implements it. Lists all methods: first those that borrow their
/// receiver shared, then those that borrow it exclusively.
macro_rules! forward {
    ($trait:ident<$of:ident> for $($target:ty),*; $methods:tt) => {$(
        forward!(@one $trait<$of> for $target; $methods);
    )*};
    (@one $trait:ident<$of:ident> for $target:ty; {
        $(fn $shared:ident($($argument:ident: $type:ty),*) -> $returned:ty;)*
        $(mut fn $exclusive:ident($($other:ident: $other_type:ty),*) -> $other_returned:ty;)*
    }) => {
        #[deny(clippy::missing_trait_methods)]
        impl<$of: $trait + ?Sized> $trait for $target {
            $(fn $shared(&self, $($argument: $type),*) -> $returned {
                (**self).$shared($($argument),*)
            })*
            $(fn $exclusive(&mut self, $($other: $other_type),*) -> $other_returned {
                (**self).$exclusive($($other),*)
            })*
        }
    };
}
