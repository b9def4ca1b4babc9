//! Where a writer may be killed: tests stop here to look at what is left, or to die. Otherwise nothing happens.

#[cfg(not(test))]
pub(crate) const fn reached(_step: &str) {}

#[cfg(test)]
pub(crate) use tests::{reached, with};

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    type Hook = Box<dyn FnMut(&str)>;

    thread_local! {
        static HOOK: RefCell<Option<Hook>> = const { RefCell::new(None) };
    }

    pub(crate) fn reached(step: &str) {
        HOOK.with_borrow_mut(|hook| hook.iter_mut().for_each(|hook| hook(step)));
    }

    /// Does something at each step of what this thread does.
    pub(crate) fn with<T>(hook: impl FnMut(&str) + 'static, work: impl FnOnce() -> T) -> T {
        HOOK.set(Some(Box::new(hook)));
        let done = work();
        HOOK.set(None);
        done
    }
}
