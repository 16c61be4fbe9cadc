//! Memory of the caller's tensors, as slices.
#![expect(unsafe_code)]

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use tilewright_runtime::cpu::Element;

/// Address, stride of a row of heads, stride of a head, in elements: `[batch, heads, dim]`.
pub(crate) type RowsOf = (usize, usize, usize);

/// A copy of an array, so that nobody changes it while it is read without the GIL. It may lie anywhere.
///
/// # Safety
/// `len` elements lie at the address, if there are any; any bits are one.
pub(crate) unsafe fn copied<T: Copy>((address, len): (usize, usize)) -> Vec<T> {
    let mut copy = Vec::<T>::with_capacity(len);
    if len > 0 {
        // SAFETY: the caller's promise; the vector has room for them, and other memory.
        unsafe {
            std::ptr::copy_nonoverlapping(
                address as *const u8,
                copy.as_mut_ptr().cast::<u8>(),
                len * size_of::<T>(),
            );
            copy.set_len(len);
        }
    }
    copy
}

fn aligned<T>(name: &str, address: usize) -> PyResult<()> {
    if address.is_multiple_of(align_of::<T>()) {
        return Ok(());
    }
    Err(PyValueError::new_err(format!(
        "`{name}` lies at {address:#x}, which is no multiple of its {} bytes an element: copy it",
        align_of::<T>()
    )))
}

/// # Safety
/// `len` elements lie at the address, and stay as they are while the slice lives.
pub(crate) unsafe fn slice<'a, T>(name: &str, address: usize, len: usize) -> PyResult<&'a [T]> {
    if len == 0 {
        return Ok(&[]);
    }
    aligned::<T>(name, address)?;
    // SAFETY: the caller's promise; the alignment was checked.
    Ok(unsafe { std::slice::from_raw_parts(address as *const T, len) })
}

/// # Safety
/// `len` elements lie at the address, and only the slice reaches them while it lives.
pub(crate) unsafe fn slice_mut<'a, T>(name: &str, address: usize, len: usize) -> PyResult<&'a mut [T]> {
    if len == 0 {
        return Ok(&mut []);
    }
    aligned::<T>(name, address)?;
    // SAFETY: the caller's promise; the alignment was checked.
    Ok(unsafe { std::slice::from_raw_parts_mut(address as *mut T, len) })
}

/// Rows without gaps, from rows with some.
///
/// # Safety
/// The rows lie at these strides.
pub(crate) unsafe fn gather<E: Element>(
    from: RowsOf,
    batch: usize,
    heads: usize,
    dim: usize,
) -> PyResult<Vec<E>> {
    let (address, query_stride, head_stride) = from;
    let mut rows = Vec::with_capacity(batch * heads * dim);
    for row in 0..batch * heads {
        let at = (row / heads) * query_stride + (row % heads) * head_stride;
        // SAFETY: a row of the caller's tensor.
        rows.extend_from_slice(unsafe { slice::<E>("q", address + at * size_of::<E>(), dim)? });
    }
    Ok(rows)
}

/// # Safety
/// The rows lie at these strides, and overlap nothing.
pub(crate) unsafe fn scatter<E: Element>(
    rows: &[E],
    to: RowsOf,
    batch: usize,
    heads: usize,
    dim: usize,
) -> PyResult<()> {
    let (address, query_stride, head_stride) = to;
    for row in 0..batch * heads {
        let at = (row / heads) * query_stride + (row % heads) * head_stride;
        // SAFETY: a row of the caller's tensor.
        let place = unsafe { slice_mut::<E>("out", address + at * size_of::<E>(), dim)? };
        place.copy_from_slice(&rows[row * dim..][..dim]);
    }
    Ok(())
}
