//! Planted mistakes: how a test proves that its oracles see what they should.

/// Defines `planted(fault)`, which rules ask before they are kept, and where the
/// condition holds `plant(Option<fault>)`, for the thread that calls it. Elsewhere
/// nothing is ever planted and the question costs nothing.
#[macro_export]
macro_rules! planting {
    ($fault:ident where $($condition:tt)+) => {
        #[cfg(not($($condition)+))]
        pub(crate) const fn planted(_: $fault) -> bool {
            false
        }

        #[cfg($($condition)+)]
        pub use planting::plant;
        #[cfg($($condition)+)]
        pub(crate) use planting::planted;

        #[cfg($($condition)+)]
        mod planting {
            use super::$fault;
            use std::cell::Cell;

            thread_local! {
                static PLANTED: Cell<Option<$fault>> = const { Cell::new(None) };
            }

            pub(crate) fn planted(fault: $fault) -> bool {
                PLANTED.get() == Some(fault)
            }

            /// For this thread, until the next call.
            pub fn plant(fault: Option<$fault>) {
                PLANTED.set(fault);
            }
        }
    };
}
