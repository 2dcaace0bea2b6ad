// The table of one instruction set, put together from the files that are written for vectors of any width.
#include "few_rows.h"
#include "tile.h"
#include "affine.h"
#include "few_attention.h"
#include "elementwise.h"

namespace mlxcel::kernels::MLXCEL_ISA {

extern const Kernels kTable;
const Kernels kTable = {
    .name = MLXCEL_ISA_NAME,
    .tile_rows = kTileRows,
    .tile_columns = kTileColumns,
    .arrange = arrange,
    .few_rows = {few_rows<float>, few_rows<Half>, few_rows<Brain>},
    .few_rows_affine = few_rows_affine,
    .unpack = unpack,
    .pack_rows = pack_rows,
    .pack_columns = {pack_columns<float>, pack_columns<Half>, pack_columns<Brain>},
    .copy_columns = {copy_columns<float>, copy_columns<Half>, copy_columns<Brain>},
    .tile = tile,
    .few_scores = {few_scores<float>, few_scores<Half>, few_scores<Brain>},
    .few_sums = {few_sums<float>, few_sums<Half>, few_sums<Brain>},
    .softmax = softmax,
    .exponentials = exponentials,
    .scale = scale,
    .rms_norm = {rms_norm<float>, rms_norm<Half>, rms_norm<Brain>},
    .silu_mul = silu_mul,
    .rotate_halves = rotate_halves,
};

}  // namespace mlxcel::kernels::MLXCEL_ISA
