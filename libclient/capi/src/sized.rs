//! Structs that grow: their first field is their size in the caller's header. Reads the fields that
//! are there, and writes those that there is room for. Must never touch a byte beyond the caller's
//! struct.

use crate::errors::fdbroker_code_t;
use crate::failure::Failure;
use crate::limits::{MAX_COUNT, MAX_STRUCT_BYTES};
use std::marker::PhantomData;
use std::mem::size_of;

/// A plain struct that begins with `struct_size: u64`.
///
/// # Safety
/// `repr(C)`, `struct_size` first, no padding, and any bytes are a valid value.
pub(crate) unsafe trait Growable: Copy {
    /// Its C name, for error texts.
    const NAME: &'static str;
    /// The least size that has a meaning; a caller's struct may end at any field after it.
    const LEAST_BYTES: u64;
    /// The values of fields that a smaller struct lacks.
    fn absent() -> Self {
        Self::zeroed()
    }
    /// 0 in all fields but `struct_size`.
    fn zeroed() -> Self {
        // SAFETY: any bytes are a valid value, and those of `struct_size` come first.
        unsafe {
            let mut zeroed: Self = std::mem::zeroed();
            (&raw mut zeroed).cast::<u64>().write(size_of::<Self>() as u64);
            zeroed
        }
    }
}

/// Checks the caller's `struct_size`.
fn checked<T: Growable>(size: u64) -> Result<usize, Failure> {
    let name = T::NAME;
    if size < T::LEAST_BYTES {
        let text = format!("{name}: struct_size is {size}; set it to sizeof({name})");
        return Err(Failure::argument(text));
    }
    // All structs here are multiples of 8; an array of any other size would not be aligned.
    if size > MAX_STRUCT_BYTES || !size.is_multiple_of(8) {
        let text = format!(
            "{name}: struct_size is {size}, which no release has; set it to sizeof({name})"
        );
        return Err(Failure::argument(text));
    }
    Ok(usize::try_from(size).expect("at most 4096"))
}

fn null<T: Growable>() -> Failure {
    Failure::argument(format!("a pointer to {} is NULL", T::NAME))
}

/// The caller's array, to be read. The first element's `struct_size` is the distance between all.
pub(crate) struct Input<'a, T> {
    first: *const u8,
    stride: usize,
    count: usize,
    marker: PhantomData<&'a T>,
}

impl<T: Growable> Input<'_, T> {
    /// # Safety
    /// `first` is NULL or points to `count` structs of its `struct_size` bytes, not written
    /// meanwhile.
    pub unsafe fn new(first: *const T, count: usize) -> Result<Self, Failure> {
        check_count(count)?;
        let first = first.cast::<u8>();
        let stride = match count {
            0 => 0,
            _ if first.is_null() => return Err(null::<T>()),
            // SAFETY: there is at least one, and it begins with its size.
            _ => checked::<T>(unsafe { first.cast::<u64>().read_unaligned() })?,
        };
        Ok(Input { first, stride, count, marker: PhantomData })
    }

    /// A copy of one element, with its missing fields filled in.
    pub fn get(&self, index: usize) -> Result<T, Failure> {
        assert!(index < self.count, "inside the array");
        let known = self.stride.min(size_of::<T>());
        let mut value = T::absent();
        // SAFETY: inside the array that `new` was promised; `value` has room for `known` bytes and
        // any bytes are a value (Growable).
        let unknown = unsafe {
            let from = self.first.add(index * self.stride);
            std::ptr::copy_nonoverlapping(from, (&raw mut value).cast(), known);
            std::slice::from_raw_parts(from.add(known), self.stride - known)
        };
        if unknown.iter().all(|byte| *byte == 0) {
            Ok(value)
        } else {
            let name = T::NAME;
            let text = format!(
                "{name}: fields are set that this release of the library does not know; leave them 0"
            );
            Err(Failure::argument(text))
        }
    }
}

/// Reads one struct, with its missing fields filled in.
///
/// # Safety
/// As [`Input::new`], for one struct.
pub(crate) unsafe fn read<T: Growable>(from: *const T) -> Result<T, Failure> {
    // SAFETY: the caller's promise.
    unsafe { Input::new(from, 1) }?.get(0)
}

/// The caller's array, to be written. The first element's `struct_size` is the distance between
/// all.
pub(crate) struct Output<'a, T> {
    first: *mut u8,
    stride: usize,
    count: usize,
    marker: PhantomData<&'a mut T>,
}

impl<T: Growable> Output<'_, T> {
    /// # Safety
    /// `first` is NULL or points to `count` structs of its `struct_size` bytes that nobody else
    /// uses meanwhile.
    pub unsafe fn new(first: *mut T, count: usize) -> Result<Self, Failure> {
        // SAFETY: the caller's promise.
        let Input { stride, count, .. } = unsafe { Input::new(first.cast_const(), count) }?;
        Ok(Output { first: first.cast(), stride, count, marker: PhantomData })
    }

    /// Writes one element: as many fields as the caller's struct has, and 0 into fields that this
    /// release does not know.
    pub fn set(&mut self, index: usize, value: &T) {
        assert!(index < self.count, "inside the array");
        let known = self.stride.min(size_of::<T>());
        // SAFETY: inside the array that `new` was promised; `value` has `known` bytes, none of them
        // padding.
        unsafe {
            let to = self.first.add(index * self.stride);
            std::ptr::copy_nonoverlapping((&raw const *value).cast(), to, known);
            to.add(known).write_bytes(0, self.stride - known);
            to.cast::<u64>().write_unaligned(self.stride as u64);
        }
    }
}

/// Writes one struct, as [`Output::set`] does.
///
/// # Safety
/// As [`Output::new`], for one struct.
pub(crate) unsafe fn write<T: Growable>(to: *mut T, value: &T) -> Result<(), Failure> {
    // SAFETY: the caller's promise.
    unsafe { Output::new(to, 1) }?.set(0, value);
    Ok(())
}

/// Fills a struct of the caller's with what an absent field means: as many fields as it has, and 0
/// into fields that this release does not know. Leaves NULL and what has no room for its size
/// alone.
///
/// # Safety
/// `to` is NULL or points to `bytes` bytes that nobody else uses meanwhile.
pub(crate) unsafe fn init<T: Growable>(to: *mut T, bytes: usize) {
    if to.is_null() || bytes < size_of::<u64>() {
        return;
    }
    let known = bytes.min(size_of::<T>());
    let value = T::absent();
    // SAFETY: the caller's promise; `value` has `known` bytes, none of them padding, and there is
    // room for the size.
    unsafe {
        let to = to.cast::<u8>();
        std::ptr::copy_nonoverlapping((&raw const value).cast(), to, known);
        to.add(known).write_bytes(0, bytes - known);
        to.cast::<u64>().write_unaligned(bytes as u64);
    }
}

/// The place of an answer, with `none` in it for now.
///
/// # Safety
/// `out` is NULL, or the caller's to write while the answer is.
pub(crate) unsafe fn place<'a, T>(out: *mut T, name: &str, none: T) -> Result<&'a mut T, Failure> {
    // SAFETY: the caller's promise.
    let out = unsafe { out.as_mut() };
    let out = out.ok_or_else(|| Failure::argument(format!("{name} is NULL")))?;
    *out = none;
    Ok(out)
}

/// Ends what a call has given out in a box; NULL: nothing.
///
/// # Safety
/// `given` is NULL, or made by `Box::into_raw` and used for the last time.
pub(crate) unsafe fn take_back<T>(given: *mut T) -> Result<(), Failure> {
    if !given.is_null() {
        // SAFETY: the caller's promise.
        drop(unsafe { Box::from_raw(given) });
    }
    Ok(())
}

/// Refuses more than [`MAX_COUNT`] items.
pub(crate) fn check_count(count: usize) -> Result<(), Failure> {
    if count <= MAX_COUNT {
        Ok(())
    } else {
        Err(Failure::argument(format!("count is {count}; at most {MAX_COUNT} in one call")))
    }
}

/// The caller's plain array, to be read. NULL is allowed only for an empty one.
///
/// # Safety
/// `first` is NULL or points to `count` values, not written meanwhile.
pub(crate) unsafe fn slice<'a, T>(
    first: *const T,
    count: usize,
    name: &str,
) -> Result<&'a [T], Failure> {
    check_count(count)?;
    match count {
        0 => Ok(&[]),
        _ if first.is_null() => Err(Failure::argument(format!("{name} is NULL"))),
        // SAFETY: the caller's promise; MAX_COUNT values of ours are less than isize::MAX bytes.
        _ => Ok(unsafe { std::slice::from_raw_parts(first, count) }),
    }
}

/// The caller's plain array, to be written; `None` when it is NULL.
///
/// # Safety
/// `first` is NULL or points to `count` values that nobody else uses meanwhile.
pub(crate) unsafe fn slice_mut<'a, T>(
    first: *mut T,
    count: usize,
) -> Result<Option<&'a mut [T]>, Failure> {
    check_count(count)?;
    // SAFETY: the caller's promise; MAX_COUNT values of ours are less than isize::MAX bytes.
    Ok((!first.is_null()).then(|| unsafe { std::slice::from_raw_parts_mut(first, count) }))
}

/// The array for the results of a call for many. Every element is written, also on failure.
pub(crate) trait Results<T> {
    /// Writes the result at `index`; `None` writes "no result".
    fn put(&mut self, index: usize, value: Option<T>);
}

/// The caller's arrays for results and codes.
pub(crate) struct Answers<'a, R> {
    count: usize,
    results: R,
    codes: Option<&'a mut [fdbroker_code_t]>,
}

impl<'a, R> Answers<'a, R> {
    /// Pairs results and codes. When `results` is an error, all codes are set to it.
    ///
    /// # Safety
    /// `codes` is NULL or points to `count` codes that nobody else uses meanwhile.
    pub unsafe fn new(
        count: usize,
        results: Result<R, Failure>,
        codes: *mut fdbroker_code_t,
    ) -> Result<Self, Failure> {
        // SAFETY: the caller's promise.
        let codes: Option<&'a mut [fdbroker_code_t]> = unsafe { slice_mut(codes, count) }?;
        match results {
            Ok(results) => Ok(Answers { count, results, codes }),
            Err(failure) => {
                codes.into_iter().for_each(|codes| codes.fill(failure.code()));
                Err(failure)
            }
        }
    }

    /// Writes all outcomes; answers the first failure. An outer error, by which no item was tried,
    /// counts for every item.
    pub fn fill<T, F: Into<Failure>>(
        &mut self,
        outcomes: Result<impl IntoIterator<Item = Result<T, F>>, Failure>,
    ) -> Result<(), Failure>
    where
        R: Results<T>,
    {
        let outcomes = match outcomes {
            Ok(outcomes) => outcomes,
            Err(failure) => {
                (0..self.count).for_each(|index| self.put(index, None, failure.code()));
                return Err(failure);
            }
        };
        let mut first = Ok(());
        for (index, outcome) in outcomes.into_iter().enumerate() {
            match outcome {
                Ok(value) => self.put(index, Some(value), 0),
                Err(failure) => {
                    let failure = failure.into();
                    self.put(index, None, failure.code());
                    first = first.and(Err(failure));
                }
            }
        }
        first
    }

    fn put<T>(&mut self, index: usize, value: Option<T>, code: fdbroker_code_t)
    where
        R: Results<T>,
    {
        self.results.put(index, value);
        if let Some(codes) = &mut self.codes {
            codes[index] = code;
        }
    }
}

/// A plain array for results, and the value that stands for "no result".
pub(crate) type Plain<'a, T> = (&'a mut [T], fn() -> T);

impl<T> Results<T> for Plain<'_, T> {
    fn put(&mut self, index: usize, value: Option<T>) {
        let (array, none) = self;
        array[index] = value.unwrap_or_else(*none);
    }
}

/// The caller's plain array for results. NULL is allowed only for an empty one.
///
/// # Safety
/// `first` is NULL or points to `count` values that nobody else uses meanwhile.
pub(crate) unsafe fn plain<'a, T>(
    first: *mut T,
    count: usize,
    name: &str,
    none: fn() -> T,
) -> Result<Plain<'a, T>, Failure> {
    // SAFETY: the caller's promise.
    match unsafe { slice_mut(first, count) }? {
        Some(array) => Ok((array, none)),
        None if count == 0 => Ok((&mut [], none)),
        None => Err(Failure::argument(format!("{name} is NULL"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Copy, Debug, PartialEq)]
    #[repr(C)]
    struct Now {
        struct_size: u64,
        old: u64,
        new: i64,
    }

    // SAFETY: repr(C), three fields of 8 bytes, struct_size first.
    unsafe impl Growable for Now {
        const NAME: &'static str = "now_t";
        const LEAST_BYTES: u64 = 16;
        fn absent() -> Self {
            Now { struct_size: 24, old: 0, new: -1 }
        }
    }

    fn read_words(words: &[u64]) -> Result<Now, Failure> {
        // SAFETY: every test's array is as long as its first word says, or is refused before it is
        // read.
        unsafe { read(words.as_ptr().cast::<Now>()) }
    }

    #[test]
    fn read_when_older_then_missing_fields_have_their_default() {
        assert_eq!(read_words(&[16, 5]).unwrap(), Now { struct_size: 16, old: 5, new: -1 });
    }

    #[test]
    fn read_when_newer_then_only_zeros_are_accepted() {
        assert_eq!(read_words(&[32, 5, 6, 0]).unwrap(), Now { struct_size: 32, old: 5, new: 6 });
        assert!(read_words(&[32, 5, 6, 1]).is_err());
    }

    #[test]
    fn read_when_size_cannot_be_then_refused() {
        for size in [0, 8, 15, 23, MAX_STRUCT_BYTES + 8, u64::MAX] {
            assert!(read_words(&[size, 0, 0]).is_err(), "{size}");
        }
        // SAFETY: NULL may be asked for.
        assert!(unsafe { read::<Now>(std::ptr::null()) }.is_err());
    }

    #[test]
    fn set_when_older_array_then_strides_by_its_size_and_writes_no_further() {
        let mut words: [u64; 5] = [16, 0, 77, 0, 99];
        // SAFETY: two structs of 16 bytes.
        let mut out = unsafe { Output::new(words.as_mut_ptr().cast::<Now>(), 2) }.unwrap();
        out.set(0, &Now { struct_size: 0, old: 1, new: 2 });
        out.set(1, &Now { struct_size: 0, old: 3, new: 4 });
        assert_eq!(words, [16, 1, 16, 3, 99]);
    }

    #[test]
    fn init_when_older_or_newer_then_writes_the_callers_bytes_and_no_further() {
        let (mut older, mut newer): ([u64; 3], [u64; 5]) = ([9; 3], [9; 5]);
        // SAFETY: two words of three, four of five; NULL and a struct without room are left alone.
        unsafe {
            init(older.as_mut_ptr().cast::<Now>(), 16);
            init(newer.as_mut_ptr().cast::<Now>(), 32);
            init(std::ptr::null_mut::<Now>(), 24);
            init(older.as_mut_ptr().add(2).cast::<Now>(), 7);
        }
        assert_eq!(older, [16, 0, 9]);
        assert_eq!(newer, [32, 0, u64::MAX, 0, 9]);
    }

    #[test]
    fn set_when_newer_then_unknown_fields_are_zero() {
        let mut words: [u64; 5] = [32, 9, 9, 9, 99];
        // SAFETY: one struct of 32 bytes.
        unsafe { write(words.as_mut_ptr().cast(), &Now { struct_size: 0, old: 1, new: 2 }) }
            .unwrap();
        assert_eq!(words, [32, 1, 2, 0, 99]);
    }
}
