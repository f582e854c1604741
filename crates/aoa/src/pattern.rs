//! Names with placeholders and stars, and finding the names they match without trying them all.

use smallvec::SmallVec;
use std::cmp::Ordering;
use std::collections::HashMap;
use std::sync::Arc;

/// Number of an interned name.
pub(crate) type NameId = u32;

/// Decimal digits as they stand in a name, ordered by value.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Digits(SmallVec<[u8; 8]>);

impl Digits {
    fn new(digits: &str) -> Digits {
        Digits(SmallVec::from_slice(digits.as_bytes()))
    }

    fn significant(&self) -> &[u8] {
        let zeros = self.0.iter().take_while(|&&d| d == b'0').count();
        &self.0[zeros..]
    }

    fn push_to(&self, text: &mut String) {
        text.extend(self.0.iter().map(|&d| char::from(d)));
    }

    /// One more, or one less; `None` below zero.
    pub(crate) fn shifted(&self, up: bool) -> Option<Digits> {
        let (last, rolled, step) = if up { (b'9', b'0', 1) } else { (b'0', b'9', -1i8) };
        let mut digits = self.0.clone();
        let Some(at) = digits.iter().rposition(|&d| d != last) else {
            digits.fill(b'0');
            digits.insert(0, b'1');
            return up.then_some(Digits(digits));
        };
        digits[at] = digits[at].wrapping_add_signed(step);
        digits[at + 1..].fill(rolled);
        let zeros = digits[..digits.len() - 1].iter().take_while(|&&d| d == b'0').count();
        // `10` down is `9`, as a number is written; digits written with leading zeros keep them.
        if zeros == 1 && self.0[0] != b'0' {
            digits.remove(0);
        }
        Some(Digits(digits))
    }
}

impl Ord for Digits {
    fn cmp(&self, other: &Digits) -> Ordering {
        let (a, b) = (self.significant(), other.significant());
        (a.len(), a, self.0.len()).cmp(&(b.len(), b, other.0.len()))
    }
}

impl PartialOrd for Digits {
    fn partial_cmp(&self, other: &Digits) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

/// A value for each placeholder of a statement; none where a name does not hold it.
pub(crate) type Tuple = SmallVec<[Option<Digits>; 2]>;

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Text(String),
    /// A placeholder, by its number in the statement.
    Var(usize),
    Star,
}

/// A name cut at its placeholders and stars.
#[derive(Clone, Debug)]
pub(crate) struct Pattern {
    parts: Vec<Part>,
    skeleton: String,
}

/// Placeholders the language has always had; others end where capitals, digits and underscores end.
const OLD: [&str; 3] = ["LAYER_ID_OFFSET", "LAYER_ID", "EXPERT_ID"];

impl Pattern {
    /// Cuts a name; placeholders are numbered by their place in `vars`, which grows.
    pub(crate) fn new(base: &str, vars: &mut Vec<String>) -> Pattern {
        let mut parts = Vec::new();
        let mut text = String::new();
        let mut rest = base;
        while let Some(c) = rest.chars().next() {
            let var = if c == '$' { placeholder(&rest[1..]) } else { "" };
            if c != '*' && var.is_empty() {
                text.push(c);
                rest = &rest[c.len_utf8()..];
                continue;
            }
            if !text.is_empty() {
                parts.push(Part::Text(std::mem::take(&mut text)));
            }
            if c == '*' {
                parts.push(Part::Star);
            } else {
                let number = vars.iter().position(|v| v == var).unwrap_or_else(|| {
                    vars.push(var.to_string());
                    vars.len() - 1
                });
                parts.push(Part::Var(number));
            }
            rest = &rest[1 + var.len()..];
        }
        if !text.is_empty() {
            parts.push(Part::Text(text));
        }
        Pattern::from_parts(parts)
    }

    /// A name taken as it is.
    pub(crate) fn literal(name: &str) -> Pattern {
        Pattern::from_parts(vec![Part::Text(name.to_string())])
    }

    /// The same pattern with more text at its end.
    pub(crate) fn followed_by(&self, text: &str) -> Pattern {
        let mut parts = self.parts.clone();
        parts.push(Part::Text(text.to_string()));
        Pattern::from_parts(parts)
    }

    fn from_parts(parts: Vec<Part>) -> Pattern {
        let mut flat = String::new();
        for part in &parts {
            match part {
                Part::Text(text) => flat.push_str(text),
                Part::Var(_) | Part::Star => flat.push('0'),
            }
        }
        Pattern { skeleton: skeleton(&flat), parts }
    }

    pub(crate) fn has_var(&self, var: usize) -> bool {
        self.parts.contains(&Part::Var(var))
    }

    pub(crate) fn stars(&self) -> usize {
        self.parts.iter().filter(|p| **p == Part::Star).count()
    }

    /// The tuple with only the placeholders this name holds.
    pub(crate) fn project(&self, tuple: &Tuple) -> Tuple {
        let keep = |(var, digits): (usize, &Option<Digits>)| digits.clone().filter(|_| self.has_var(var));
        tuple.iter().enumerate().map(keep).collect()
    }

    /// The name with placeholders replaced; a star stays out.
    pub(crate) fn render(&self, tuple: &Tuple) -> String {
        let mut name = String::with_capacity(self.skeleton.len() + 8);
        for part in &self.parts {
            match part {
                Part::Text(text) => name.push_str(text),
                Part::Var(var) => {
                    if let Some(Some(digits)) = tuple.get(*var) {
                        digits.push_to(&mut name);
                    }
                }
                Part::Star => name.push('*'),
            }
        }
        name
    }

    /// The values under which this pattern is `name`: placeholders, and the star.
    pub(crate) fn matches(&self, name: &str, vars: usize) -> Option<(Tuple, Option<Digits>)> {
        let mut found = (Tuple::from_elem(None, vars), None);
        match_from(&self.parts, name, &mut found).then_some(found)
    }
}

fn match_from(parts: &[Part], name: &str, found: &mut (Tuple, Option<Digits>)) -> bool {
    let Some((part, rest)) = parts.split_first() else { return name.is_empty() };
    if let Part::Text(text) = part {
        return name.strip_prefix(text.as_str()).is_some_and(|name| match_from(rest, name, found));
    }
    let slot = |found: &mut (Tuple, Option<Digits>)| match part {
        Part::Var(var) => found.0[*var].clone(),
        _ => found.1.clone(),
    };
    let before = slot(found);
    let digits = name.bytes().take_while(u8::is_ascii_digit).count();
    // The longest run first, as a greedy expression would.
    for len in (1..=digits).rev() {
        let value = Digits::new(&name[..len]);
        if before.as_ref().is_some_and(|seen| *seen != value) {
            continue;
        }
        match part {
            Part::Var(var) => found.0[*var] = Some(value),
            _ => found.1 = Some(value),
        }
        if match_from(rest, &name[len..], found) {
            return true;
        }
    }
    match part {
        Part::Var(var) => found.0[*var] = before,
        _ => found.1 = before,
    }
    false
}

/// The placeholder a text begins with, without `$`; empty when there is none.
fn placeholder(text: &str) -> &str {
    if let Some(old) = OLD.iter().find(|old| text.starts_with(**old)) {
        return &text[..old.len()];
    }
    let inside = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
    let len = text.find(|c| !inside(c)).unwrap_or(text.len());
    let word = text[..len].trim_end_matches('_');
    if word.starts_with(|c: char| c.is_ascii_uppercase()) { word } else { "" }
}

/// A name with every run of digits replaced by one mark.
fn skeleton(name: &str) -> String {
    let mut out = String::with_capacity(name.len());
    let mut in_digits = false;
    for c in name.chars() {
        if !c.is_ascii_digit() {
            out.push(c);
        } else if !in_digits {
            out.push('#');
        }
        in_digits = c.is_ascii_digit();
    }
    out
}

/// All names of a mapping, numbered, and found by what they are without their digits.
#[derive(Debug, Default)]
pub(crate) struct Names {
    texts: Vec<Arc<str>>,
    ids: HashMap<Arc<str>, NameId>,
    buckets: HashMap<String, Vec<NameId>>,
}

impl Names {
    /// The number of a name, known or new.
    pub(crate) fn intern(&mut self, name: &str) -> NameId {
        match self.ids.get(name) {
            Some(&id) => id,
            None => self.add(name.into()),
        }
    }

    /// Numbers a name without copying it.
    pub(crate) fn intern_shared(&mut self, name: &Arc<str>) -> NameId {
        match self.ids.get(name) {
            Some(&id) => id,
            None => self.add(name.clone()),
        }
    }

    fn add(&mut self, name: Arc<str>) -> NameId {
        // Names are bounded by what a statement may stand for, far below this type's range.
        let id = self.texts.len() as NameId;
        self.buckets.entry(skeleton(&name)).or_default().push(id);
        self.ids.insert(name.clone(), id);
        self.texts.push(name);
        id
    }

    pub(crate) fn find(&self, name: &str) -> Option<NameId> {
        self.ids.get(name).copied()
    }

    pub(crate) fn text(&self, id: NameId) -> &Arc<str> {
        &self.texts[id as usize]
    }

    pub(crate) fn len(&self) -> usize {
        self.texts.len()
    }

    /// The names that may match a pattern.
    pub(crate) fn candidates(&self, pattern: &Pattern) -> &[NameId] {
        self.buckets.get(&pattern.skeleton).map_or(&[], Vec::as_slice)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digits(text: &str) -> Digits {
        Digits::new(text)
    }

    #[test]
    fn digits_compare_by_value_and_step_by_one() {
        assert!(digits("9") < digits("10") && digits("007") < digits("8"));
        let down = |text: &str| digits(text).shifted(false).map(|d| String::from_utf8(d.0.to_vec()).unwrap());
        assert_eq!(down("10").as_deref(), Some("9"));
        assert_eq!(down("100").as_deref(), Some("99"));
        assert_eq!(down("21").as_deref(), Some("20"));
        assert_eq!((down("1").as_deref(), down("0")), (Some("0"), None));
        assert_eq!(digits("99").shifted(true), Some(digits("100")));
        assert_eq!(digits("9").shifted(true), Some(digits("10")));
    }

    #[test]
    fn patterns_match_digits_only_and_repeat_values() {
        let mut vars = Vec::new();
        let pattern = Pattern::new("l.$LAYER_ID.x.$LAYER_ID.e*", &mut vars);
        let found = pattern.matches("l.12.x.12.e007", 1).unwrap();
        assert_eq!(found, (Tuple::from_elem(Some(digits("12")), 1), Some(digits("007"))));
        assert!(pattern.matches("l.1.x.2.e0", 1).is_none());
        assert!(pattern.matches("l.a.x.a.e0", 1).is_none());
        assert_eq!(vars, ["LAYER_ID"]);
    }

    #[test]
    fn placeholders_next_to_digits_are_found_in_the_same_bucket() {
        let mut names = Names::default();
        let id = names.intern("w12.b");
        let mut vars = Vec::new();
        let pattern = Pattern::new("w1$BLOCK_ID.b", &mut vars);
        assert_eq!(names.candidates(&pattern), [id]);
        assert!(pattern.matches("w12.b", 1).is_some());
        assert_eq!(vars, ["BLOCK_ID"]);
        assert_eq!(Pattern::new("a$LAYER_ID_w", &mut vars).parts.len(), 3);
    }
}
