//! Declares a record of whole numbers once; everything that walks its fields is derived from that declaration.

/// Declares a struct of whole-number fields with their names, descriptions, and conversion to and from an array.
///
/// Storage, fitting, emission and reports iterate over `NAMES` and `values()`, so that a new field is one new line here;
/// code that builds the struct literally no longer compiles until it names the new field.
macro_rules! whole_number_record {
    (
        $(#[$meta:meta])*
        pub struct $name:ident : $number:ty {
            $( #[doc = $doc:literal] $field:ident ),+ $(,)?
        }
    ) => {
        $(#[$meta])*
        pub struct $name {
            $( #[doc = $doc] pub $field: $number, )+
        }

        impl $name {
            /// How many fields there are.
            pub const COUNT: usize = [$( stringify!($field) ),+].len();
            /// The fields' names, in order.
            pub const NAMES: [&'static str; Self::COUNT] = [$( stringify!($field) ),+];
            /// What each field means, in order.
            pub const DESCRIPTIONS: [&'static str; Self::COUNT] = [$( $doc ),+];

            /// The fields' values, in order.
            #[inline]
            pub const fn values(&self) -> [$number; Self::COUNT] {
                [$( self.$field ),+]
            }

            /// The record with these values, in order.
            pub const fn from_values(values: [$number; Self::COUNT]) -> Self {
                let [$( $field ),+] = values;
                Self { $( $field ),+ }
            }
        }
    };
}

pub(crate) use whole_number_record;
