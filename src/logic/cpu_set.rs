//! Set of processors, and its text as the kernel and a kubelet write it: `0-1,3`.

use alloc::vec::Vec;
use core::fmt;

/// Highest number of a processor in a set: the kernel's own build-time limit.
const MAX_CPU: u32 = 8191;
/// Processors in a word of a set.
const WORD: u32 = u64::BITS;

/// Set of processors, by number.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CpuSet {
    /// Bits, the lowest processor first. The last word is not zero.
    words: Vec<u64>,
}

impl CpuSet {
    /// Reads a list such as `0-1,3`. An empty text is an empty set. `None`: not a list, or a number above 8191.
    #[must_use]
    pub fn parse(text: &str) -> Option<Self> {
        let mut set = Self::default();
        let text = text.trim();
        if text.is_empty() {
            return Some(set);
        }
        for part in text.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last): (u32, u32) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
            if first > last || last > MAX_CPU {
                return None;
            }
            (first..=last).for_each(|cpu| set.insert(cpu));
        }
        Some(set)
    }

    /// Adds a processor.
    pub fn insert(&mut self, cpu: u32) {
        let word = (cpu / WORD) as usize;
        if self.words.len() <= word {
            self.words.resize(word + 1, 0);
        }
        self.words[word] |= 1 << (cpu % WORD);
    }

    /// Number of processors.
    #[must_use]
    pub fn len(&self) -> usize {
        let ones = |word: &u64| word.count_ones() as usize;
        self.words.iter().map(ones).sum()
    }

    /// Returns true if the set has no processor.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.words.is_empty()
    }

    /// Numbers of the processors, the lowest first.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        (0..).zip(&self.words).flat_map(|(number, word): (u32, _)| {
            let has = move |bit: &u32| word & (1 << bit) != 0;
            (0..WORD).filter(has).map(move |bit| number * WORD + bit)
        })
    }

    /// The processors of both sets.
    #[must_use]
    pub fn union(&self, other: &Self) -> Self {
        self.combine(other, |a, b| a | b)
    }

    /// The processors of this set that the other one does not have.
    #[must_use]
    pub fn without(&self, other: &Self) -> Self {
        self.combine(other, |a, b| a & !b)
    }

    /// The processors that both sets have.
    #[must_use]
    pub fn common(&self, other: &Self) -> Self {
        self.combine(other, |a, b| a & b)
    }

    fn combine(&self, other: &Self, join: fn(u64, u64) -> u64) -> Self {
        let word = |words: &[u64], n: usize| words.get(n).copied().unwrap_or(0);
        let len = self.words.len().max(other.words.len());
        let mut words: Vec<u64> = (0..len)
            .map(|n| join(word(&self.words, n), word(&other.words, n)))
            .collect();
        while words.last() == Some(&0) {
            words.pop();
        }
        Self { words }
    }

    /// Moves processors of this set to `taken`, the lowest first, until that has `want`.
    pub fn move_lowest(&self, taken: &mut Self, want: usize) {
        for cpu in self.iter() {
            if taken.len() >= want {
                return;
            }
            taken.insert(cpu);
        }
    }
}

impl fmt::Display for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut range: Option<(u32, u32)> = None;
        let mut comma = "";
        let mut end = |range: Option<(u32, u32)>| -> fmt::Result {
            let Some((first, last)) = range else {
                return Ok(());
            };
            match first == last {
                true => write!(f, "{comma}{first}")?,
                false => write!(f, "{comma}{first}-{last}")?,
            }
            comma = ",";
            Ok(())
        };
        for cpu in self.iter() {
            match &mut range {
                Some((_, last)) if *last + 1 == cpu => *last = cpu,
                _ => end(range.replace((cpu, cpu)))?,
            }
        }
        end(range)
    }
}

#[cfg(test)]
mod tests {
    use alloc::string::ToString;

    use super::*;

    #[test]
    fn lists() {
        for (text, count, shown) in [
            ("", 0, ""),
            ("0", 1, "0"),
            ("0-1,3", 3, "0-1,3"),
            (" 3, 1-1 ,0\n", 3, "0-1,3"),
            ("62-65,8191", 5, "62-65,8191"),
        ] {
            let set = CpuSet::parse(text).expect(text);
            assert_eq!((set.len(), set.to_string()), (count, shown.into()));
            assert_eq!(set.is_empty(), count == 0);
        }
        for bad in ["x", "1-", "3-1", "-1", "8192", "1;2", ",", "1,"] {
            assert_eq!(CpuSet::parse(bad), None, "{bad}");
        }
    }

    #[test]
    fn sets() {
        let set = |text: &str| CpuSet::parse(text).expect("a list");
        assert_eq!(set("0-3").union(&set("100")), set("0-3,100"));
        assert_eq!(set("0-3,100").without(&set("1,100")), set("0,2-3"));
        assert_eq!(set("0-3").common(&set("2-200")), set("2-3"));
        assert!(set("0").without(&set("0")).is_empty());
        let mut taken = set("7");
        set("1-5").move_lowest(&mut taken, 3);
        assert_eq!(taken, set("1-2,7"));
    }
}
