//! Which interfaces are watched, by name. Loopback is left out elsewhere, by its flag: a name is
//! no proof of what a device is.

use std::fmt;

/// Longest name of an interface (IFNAMSIZ without its final zero).
const MAX_NAME: usize = 15;

/// Patterns to include and to exclude; an exclusion wins.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct InterfaceRule {
    /// Empty: every interface.
    pub include: Vec<Pattern>,
    /// Not these, even if included.
    pub exclude: Vec<Pattern>,
}

impl InterfaceRule {
    /// Whether an interface of this name is to be watched.
    pub fn watches(&self, name: &str) -> bool {
        let any = |patterns: &[Pattern]| patterns.iter().any(|pattern| pattern.matches(name));
        (self.include.is_empty() || any(&self.include)) && !any(&self.exclude)
    }
}

impl fmt::Display for InterfaceRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let list = |patterns: &[Pattern]| {
            patterns
                .iter()
                .map(|pattern| pattern.0.as_ref())
                .collect::<Vec<&str>>()
                .join(",")
        };
        match self.include.is_empty() {
            true => f.write_str("all")?,
            false => f.write_str(&list(&self.include))?,
        }
        f.write_str(" but lo")?;
        if !self.exclude.is_empty() {
            write!(f, ",{}", list(&self.exclude))?;
        }
        Ok(())
    }
}

/// A name in which `*` stands for any characters and `?` for one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern(Box<str>);

impl Pattern {
    /// A pattern that some interface can match.
    ///
    /// # Errors
    /// Why none can.
    pub fn new(text: &str) -> Result<Self, &'static str> {
        if text.is_empty() {
            return Err("it is empty");
        }
        if text
            .bytes()
            .any(|b| b.is_ascii_whitespace() || b == b'/' || b == b':')
        {
            return Err("no interface has a space, '/' or ':' in its name");
        }
        if text.bytes().any(|b| b"[]{}!\\^$+|()".contains(&b)) {
            return Err("only * (any characters) and ? (one character) are special");
        }
        if text.chars().filter(|c| *c != '*').count() > MAX_NAME {
            return Err("no interface's name is longer than 15 characters");
        }
        Ok(Self(text.into()))
    }

    /// Whether it stands for this name.
    pub fn matches(&self, name: &str) -> bool {
        let (pattern, name) = (self.0.as_bytes(), name.as_bytes());
        let (mut p, mut n) = (0, 0);
        // Where to go on when a later part does not fit: the last star, and what it took so far.
        let mut retry = None;
        while n < name.len() {
            match pattern.get(p) {
                Some(b'*') => {
                    retry = Some((p + 1, n));
                    p += 1;
                }
                Some(&b) if b == b'?' || b == name[n] => (p, n) = (p + 1, n + 1),
                _ => match retry {
                    Some((star, taken)) => {
                        (p, n) = (star, taken + 1);
                        retry = Some((star, taken + 1));
                    }
                    None => return false,
                },
            }
        }
        pattern[p..].iter().all(|b| *b == b'*')
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rstest::rstest;

    #[rstest]
    #[case("eth0", "eth0", true)]
    #[case("eth0", "eth01", false)]
    #[case("eth*", "eth0", true)]
    #[case("eth*", "eth", true)]
    #[case("*", "", true)]
    #[case("?", "", false)]
    #[case("*.100", "bond0.100", true)]
    #[case("cali*?", "cali", false)]
    #[case("a*b*c", "aXbYbZc", true)]
    #[case("a*b*c", "aXcYb", false)]
    #[case("lxc????", "lxc1234", true)]
    fn stands_for(#[case] pattern: &str, #[case] name: &str, #[case] expected: bool) {
        assert_eq!(Pattern::new(pattern).unwrap().matches(name), expected);
    }

    #[rstest]
    #[case("")]
    #[case("eth 0")]
    #[case("eth[0-9]")]
    #[case("a/b")]
    #[case("sixteencharacter")]
    fn none_can_match(#[case] pattern: &str) {
        assert!(Pattern::new(pattern).is_err());
    }

    #[test]
    fn an_exclusion_wins() {
        let pattern = |text| Pattern::new(text).unwrap();
        let rule = InterfaceRule {
            include: vec![pattern("eth*"), pattern("veth*")],
            exclude: vec![pattern("eth9")],
        };
        assert!(rule.watches("eth0"));
        assert!(!rule.watches("eth9"));
        assert!(!rule.watches("docker0"));
        assert!(InterfaceRule::default().watches("docker0"));
        assert_eq!(rule.to_string(), "eth*,veth* but lo,eth9");
        assert_eq!(InterfaceRule::default().to_string(), "all but lo");
    }

    proptest! {
        #[test]
        fn a_name_stands_for_itself_and_under_stars(name in "[a-z0-9.@-]{1,15}", cut in 0usize..15) {
            let cut = cut.min(name.len());
            prop_assert!(Pattern::new(&name).unwrap().matches(&name));
            let starred = format!("{}*{}", &name[..cut], &name[cut..]);
            prop_assert!(Pattern::new(&starred).unwrap().matches(&name));
            let prefix = format!("{}*", &name[..cut]);
            prop_assert!(Pattern::new(&prefix).unwrap().matches(&name));
        }
    }
}
