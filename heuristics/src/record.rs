//! Declares a record of whole numbers once; everything that walks its fields is derived from that declaration.

/// Declares a struct of whole-number fields with their names, descriptions, and conversion to and from an array.
///
/// Storage, fitting, emission and reports iterate over `NAMES` and `values()`, so that a new field is one new line here. A field with a default
/// (`field = 1`) may be missing in texts and in stored files.
macro_rules! whole_number_record {
    (@default) => { None };
    (@default $default:literal) => { Some($default) };
    (
        $(#[$meta:meta])*
        pub struct $name:ident : $number:ty {
            $( #[doc = $doc:literal] $field:ident $(= $default:literal)? ),+ $(,)?
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

            /// What a field is where it is not written, in order; `None` where it has to be.
            pub const DEFAULTS: [Option<$number>; Self::COUNT] = [$( whole_number_record!(@default $($default)?) ),+];

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
