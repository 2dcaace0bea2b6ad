//! Types that files mention by name.

/// Serializes a type as its `name()`, which `$find` reads back.
macro_rules! serialize_by_name {
    ($type:ty, $find:expr) => {
        impl serde::Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
                serializer.serialize_str(self.name())
            }
        }

        impl<'de> serde::Deserialize<'de> for $type {
            fn deserialize<D: serde::Deserializer<'de>>(
                deserializer: D,
            ) -> std::result::Result<Self, D::Error> {
                let name = <std::borrow::Cow<'de, str>>::deserialize(deserializer)?;
                let find: fn(&str) -> Option<Self> = $find;
                find(&name)
                    .ok_or_else(|| serde::de::Error::custom(format_args!("the name '{name}' is not known")))
            }
        }
    };
}

pub(crate) use serialize_by_name;
