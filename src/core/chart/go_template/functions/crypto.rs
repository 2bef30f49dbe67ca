pub(super) const FUNCTIONS: &[super::Function] = &[];
