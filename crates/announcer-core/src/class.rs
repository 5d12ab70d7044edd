//! The values of `spec.loadBalancerClass` that this announcer serves.

/// The rules for `spec.loadBalancerClass` (kube-vip spec 3.2).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClassRules {
    /// `lb_class_name`.
    pub name: String,
    /// `lb_class_only`: legacy handling also wants a class.
    pub only: bool,
    /// `lb_class_legacy_handling`.
    pub legacy: bool,
}

impl Default for ClassRules {
    fn default() -> Self {
        Self { name: "kube-vip.io/kube-vip-class".into(), only: false, legacy: true }
    }
}

impl ClassRules {
    /// Whether a Service of this class is served (kube-vip spec 3.2.3). Legacy handling accepts Services without a
    /// class (unless configured otherwise) and those of our class. Strict handling accepts only our class.
    pub fn accept(&self, class: Option<&str>) -> bool {
        match class {
            Some(class) => class == self.name,
            None if self.legacy => !self.only,
            None => self.name.is_empty(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn classes_by_legacy_and_strict_rules() {
        let rules = |name: &str, only, legacy| ClassRules { name: name.into(), only, legacy };
        for (rules, class, expected) in [
            (rules("a", false, true), None, true),
            (rules("a", true, true), None, false),
            (rules("a", true, true), Some("a"), true),
            (rules("a", false, true), Some("b"), false),
            (rules("a", false, false), None, false),
            (rules("a", false, false), Some("a"), true),
            (rules("", false, false), None, true),
            (rules("", false, false), Some("a"), false),
        ] {
            assert_eq!(rules.accept(class), expected, "{rules:?} {class:?}");
        }
    }
}
