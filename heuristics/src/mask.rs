//! Masks: which tokens a query sees, and how its logits are bounded.

use core::fmt;

/// Which tokens a query sees of those up to its own, and how its logits are bounded; plain attention by default.
///
/// Which options there are is compiled into kernels ([`MaskOptions`]); their numbers are given at each launch.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Mask {
    /// Sliding window: a query sees this many tokens, its own among them.
    pub window: Option<u32>,
    /// Logits are `softcap * tanh(logit / softcap)`.
    pub softcap: Option<f32>,
}

/// Which options a [`Mask`] has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MaskOptions {
    /// See [`Mask::window`].
    pub window: bool,
    /// See [`Mask::softcap`].
    pub softcap: bool,
}

impl Mask {
    /// Plain attention.
    pub const NONE: Self = Self { window: None, softcap: None };

    /// A sliding window alone.
    pub const fn window(tokens: u32) -> Self {
        Self { window: Some(tokens), ..Self::NONE }
    }

    /// A soft-cap alone.
    pub const fn softcap(bound: f32) -> Self {
        Self { softcap: Some(bound), ..Self::NONE }
    }

    /// Which options it has.
    pub const fn options(&self) -> MaskOptions {
        MaskOptions { window: self.window.is_some(), softcap: self.softcap.is_some() }
    }

    /// The same with these options too, of numbers that hide no token and hardly bend logits of about 1: for kernels that have more compiled in.
    #[must_use]
    pub fn with(&self, options: MaskOptions) -> Self {
        Self {
            window: self.window.or(options.window.then_some(u32::MAX >> 1)),
            softcap: self.softcap.or(options.softcap.then_some(2.0)),
        }
    }

    /// The first token that a query may see which is token `end - 1` of its request. No later one is hidden.
    #[inline]
    pub const fn first_seen(&self, end: u32) -> u32 {
        match self.window {
            Some(window) => end.saturating_sub(window),
            None => 0,
        }
    }

    /// What the mask is, in full precision: turns a query's logits with all tokens up to its own into what the softmax takes.
    pub fn apply(&self, logits: &mut [f64]) {
        let first = self.first_seen(u32::try_from(logits.len()).unwrap_or(u32::MAX)) as usize;
        if let Some(softcap) = self.softcap.map(f64::from) {
            logits.iter_mut().for_each(|logit| *logit = softcap * (*logit / softcap).tanh());
        }
        logits[..first].fill(f64::NEG_INFINITY);
    }

    /// Refuses numbers that mean nothing.
    ///
    /// # Errors
    /// Which one, and what would be right.
    pub fn check(&self) -> Result<(), MaskError> {
        let error = |name, value, message| Err(MaskError { name, value, message });
        if self.window == Some(0) {
            let message = "a query sees at least its own token; leave the window out to see all";
            return error("window", "0".to_owned(), message);
        }
        if let Some(softcap) = self.softcap.filter(|softcap| !(softcap.is_finite() && *softcap > 0.0)) {
            let message = "the bound of the logits is a positive number; leave it out for none";
            return error("softcap", softcap.to_string(), message);
        }
        Ok(())
    }
}

impl MaskOptions {
    /// Their names, in the order in which kernels have them.
    pub const NAMES: [&'static str; 2] = ["window", "softcap"];
    /// How many there are.
    pub const COUNT: usize = Self::NAMES.len();
    /// Plain attention.
    pub const NONE: Self = Self::from_values([false; Self::COUNT]);
    /// All options.
    pub const ALL: Self = Self::from_values([true; Self::COUNT]);
    /// Those of which some number is as if there were none: a window that is longer than any request. A soft-cap bends every logit.
    pub const CAN_BE_IDLE: Self = Self { softcap: false, ..Self::ALL };

    /// Which there are, in the order of [`MaskOptions::NAMES`].
    pub const fn values(self) -> [bool; Self::COUNT] {
        [self.window, self.softcap]
    }

    /// The options with these values, in the order of [`MaskOptions::NAMES`].
    pub const fn from_values([window, softcap]: [bool; Self::COUNT]) -> Self {
        Self { window, softcap }
    }

    /// Every combination, [`MaskOptions::NONE`] first.
    pub fn all() -> impl Iterator<Item = Self> {
        (0..1u32 << Self::COUNT)
            .map(|bits| Self::from_values(core::array::from_fn(|option| bits >> option & 1 != 0)))
    }

    /// Whether kernels with these options can compute a mask with the `wanted` ones: as it is, or [`Mask::with`] idle ones.
    pub fn serves(self, wanted: Self) -> bool {
        let pairs = self.values().into_iter().zip(wanted.values());
        pairs
            .zip(Self::CAN_BE_IDLE.values())
            .all(|((has, wanted), can_be_idle)| has == wanted || (has && can_be_idle))
    }
}

/// A mask whose numbers mean nothing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MaskError {
    /// The option.
    pub name: &'static str,
    /// Its number.
    pub value: String,
    /// What would be right.
    pub message: &'static str,
}

impl fmt::Display for MaskError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "`{}` is {}: {}", self.name, self.value, self.message)
    }
}

impl core::error::Error for MaskError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_hides_the_first_tokens_and_a_cap_bounds_the_others() {
        let mask = Mask { softcap: Some(2.0), ..Mask::window(2) };
        let mut logits = [5.0, f64::NEG_INFINITY, 1.0];
        mask.apply(&mut logits);
        assert_eq!(logits, [f64::NEG_INFINITY, -2.0, 2.0 * 0.5f64.tanh()]);
        let mut logits = [5.0, 1.0];
        Mask::NONE.apply(&mut logits);
        Mask::window(3).apply(&mut logits);
        assert_eq!(logits, [5.0, 1.0]);
    }

    #[test]
    fn idle_options_hide_nothing() {
        for options in MaskOptions::all() {
            let mask = Mask::NONE.with(options);
            assert_eq!((mask.options(), mask.check()), (options, Ok(())));
            let mut logits = [0.5; 7];
            mask.apply(&mut logits);
            assert!(logits.iter().all(|logit| (logit - 0.5).abs() < 0.02), "{logits:?}");
            assert_eq!(mask.with(options), mask);
            assert_eq!(options.serves(MaskOptions::NONE), !options.softcap);
            assert!(options.serves(options) && !MaskOptions::NONE.serves(MaskOptions::ALL));
        }
        assert_eq!(Mask::window(5).with(MaskOptions::ALL).window, Some(5));
    }

    #[test]
    fn numbers_that_mean_nothing_are_refused() {
        assert!(Mask::window(0).check().is_err_and(|error| error.to_string().contains("its own token")));
        for bound in [0.0, -1.0, f32::NAN, f32::INFINITY] {
            let error = Mask::softcap(bound).check().unwrap_err().to_string();
            assert!(error.contains("softcap") && error.contains("positive"), "{error}");
        }
    }
}
