//! The boxes behind the driver's `ze_..._handle_t`. Must never read a null handle.

use crate::answer::Failure;
use level_zero_sys::ze_result_t;
use std::ptr;

/// Loaders may keep a pointer of their own in a handle's first words: these start as zero, and the
/// driver leaves them.
#[repr(C)]
pub struct Boxed<T> {
    loader: [usize; 4],
    content: T,
}

/// Makes a handle with this content, of the handle type that points to `H`.
pub fn make<T, H>(content: T) -> *mut H {
    Box::into_raw(Box::new(Boxed { loader: [0; 4], content })).cast()
}

/// The content of a handle.
///
/// # Safety
/// `handle` is null, or came from [`make`] with the same `T` and is not destroyed before the
/// answer's last use.
pub unsafe fn content<'a, T, H>(handle: *mut H) -> Result<&'a T, Failure> {
    // SAFETY: the caller's promise.
    let boxed = unsafe { handle.cast::<Boxed<T>>().as_ref() };
    Ok(&boxed.ok_or(ze_result_t::ZE_RESULT_ERROR_INVALID_NULL_HANDLE)?.content)
}

/// The handle of a content that [`content`] answered.
pub fn handle_of<T, H>(content: &T) -> *mut H {
    let inside = std::mem::offset_of!(Boxed<T>, content);
    ptr::from_ref(content).cast::<u8>().wrapping_sub(inside).cast_mut().cast()
}

/// The content of a handle, to be written.
///
/// # Safety
/// As [`content`]; the answer is valid while nobody else uses the content.
pub unsafe fn content_mut<T, H>(handle: *mut H) -> *mut T {
    // SAFETY: the caller's promise: a box of ours.
    unsafe { &raw mut (*handle.cast::<Boxed<T>>()).content }
}

/// Frees a handle and its content.
///
/// # Safety
/// As [`content`], and nobody uses it afterwards.
pub unsafe fn destroy<T, H>(handle: *mut H) -> Result<(), Failure> {
    if handle.is_null() {
        return Err(ze_result_t::ZE_RESULT_ERROR_INVALID_NULL_HANDLE.into());
    }
    // SAFETY: the caller's promise: a box of ours, ended once.
    drop(unsafe { Box::from_raw(handle.cast::<Boxed<T>>()) });
    Ok(())
}

/// Writes an answer to the caller's pointer; null is an error.
///
/// # Safety
/// `out` is null, or valid for one write.
pub unsafe fn give<T>(out: *mut T, value: T) -> Result<(), Failure> {
    if out.is_null() {
        return Err(ze_result_t::ZE_RESULT_ERROR_INVALID_NULL_POINTER.into());
    }
    // SAFETY: the caller's promise.
    unsafe { out.write(value) };
    Ok(())
}

/// The value behind the caller's pointer; null is an error.
///
/// # Safety
/// `pointer` is null, or valid and not written while the answer is used.
pub unsafe fn look<'a, T>(pointer: *const T) -> Result<&'a T, Failure> {
    // SAFETY: the caller's promise.
    unsafe { pointer.as_ref() }.ok_or(ze_result_t::ZE_RESULT_ERROR_INVALID_NULL_POINTER.into())
}

/// Like [`look`], for a value that the driver fills in.
///
/// # Safety
/// `pointer` is null, or valid and nobody else's while the answer is used.
pub unsafe fn look_mut<'a, T>(pointer: *mut T) -> Result<&'a mut T, Failure> {
    // SAFETY: the caller's promise.
    unsafe { pointer.as_mut() }.ok_or(ze_result_t::ZE_RESULT_ERROR_INVALID_NULL_POINTER.into())
}
