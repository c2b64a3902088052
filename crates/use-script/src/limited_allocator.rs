//! The allocator of a realm: operations of the engine that take memory end when the realm's limits are exceeded, also
//! those that never ask whether to go on.

#![expect(unsafe_code, reason = "the engine's allocator has an unsafe interface")]

use std::rc::Rc;

use rquickjs::allocator::{Allocator, RustAllocator};

use crate::realm::RealmState;

/// Passes requests on to Rust's allocator, as far as the state allows.
pub(crate) struct LimitedAllocator(pub(crate) Rc<RealmState>);

impl LimitedAllocator {
    /// Counts the memory that a pointer has, and returns the pointer.
    fn counted(&self, pointer: *mut u8) -> *mut u8 {
        if !pointer.is_null() {
            // SAFETY: the pointer was returned by `RustAllocator`.
            self.0.add_memory(unsafe { RustAllocator::usable_size(pointer) });
        }
        pointer
    }
}

// SAFETY: every pointer comes from `RustAllocator`, which keeps the promises of the trait, or is null.
unsafe impl Allocator for LimitedAllocator {
    fn alloc(&mut self, size: usize) -> *mut u8 {
        if !self.0.may_allocate(size) {
            return std::ptr::null_mut();
        }
        self.counted(RustAllocator.alloc(size))
    }

    fn calloc(&mut self, count: usize, size: usize) -> *mut u8 {
        if !self.0.may_allocate(count.saturating_mul(size)) {
            return std::ptr::null_mut();
        }
        self.counted(RustAllocator.calloc(count, size))
    }

    unsafe fn dealloc(&mut self, pointer: *mut u8) {
        // SAFETY: the caller passes a pointer of this allocator, which is one of `RustAllocator`.
        unsafe {
            self.0.remove_memory(RustAllocator::usable_size(pointer));
            RustAllocator.dealloc(pointer);
        }
    }

    unsafe fn realloc(&mut self, pointer: *mut u8, new_size: usize) -> *mut u8 {
        if !self.0.may_allocate(new_size) {
            return std::ptr::null_mut();
        }
        // SAFETY: as for `dealloc`; the old pointer is not used after it was moved.
        let (old_size, pointer) = unsafe {
            (RustAllocator::usable_size(pointer), RustAllocator.realloc(pointer, new_size))
        };
        if !pointer.is_null() {
            self.0.remove_memory(old_size);
        }
        self.counted(pointer)
    }

    unsafe fn usable_size(pointer: *mut u8) -> usize {
        // SAFETY: as for `dealloc`.
        unsafe { RustAllocator::usable_size(pointer) }
    }
}
