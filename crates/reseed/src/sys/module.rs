//! The module: it reseeds OpenSSL each time it is loaded, and does nothing else.
//!
//! OpenSSL gives every thread a generator of its own, and all of them a common parent, which it seeds anew when the
//! process id has changed. After a fork of the whole machine it has not, and Node has no way to ask for it. A parent that
//! was seeded has all others follow before they say anything more.
//!
//! OpenSSL's function is found where Node has it, in its own executable or in a library; without it the loading fails.

#![no_std]

use core::ffi::{c_int, c_void};
use core::panic::PanicInfo;

unsafe extern "C" {
    fn RAND_poll() -> c_int;
}

/// What Node calls whenever somebody loads this; the exports stay as empty as they are.
#[unsafe(no_mangle)]
pub extern "C" fn napi_register_module_v1(_environment: *mut c_void, exports: *mut c_void) -> *mut c_void {
    // SAFETY: takes nothing, and any thread may call it at any time; Node has initialised OpenSSL when it started.
    unsafe { RAND_poll() };
    exports
}

#[panic_handler]
fn panic(_: &PanicInfo<'_>) -> ! {
    loop {}
}
