/* Weight gradients of examples. See example_gradients.c. */
#ifndef LIPCOMPILE_EXAMPLE_GRADIENTS_H
#define LIPCOMPILE_EXAMPLE_GRADIENTS_H

#include "outer_products.h"

/* Lanes of the gradient of an example that are worked on together, with all entries: where they begin in both operands,
 * vectors of them, and how many of the lanes are there.
 */
typedef struct {
    int64_t lanes, entries, vectors, count;
} unit;

/* The gradients of examples, each [units][rows][row_width][width], width being LANES or twice that. Rows are what lies side
 * by side of the entries, and begin at their offsets.
 */
typedef struct {
    operand lanes, entries;
    size_t lanes_step, entries_step, entry_step, width;
    int by_lane;
    const segment *segments;
    size_t segment_count;
    const unit *units;
    size_t unit_count;
    const int64_t *rows;
    size_t row_count, row_width;
} gradient_plan;

/* What gradients P_i are scaled by.
 *
 * factors: [examples]; read, if they are given, else written where norms are asked for as well as a total: 1 where the
 *     norm √(‖P_i‖² + beside_i) is at most `limit`, else room/(norm + regulariser), and 0 where it is not finite.
 * beside: [examples], or NULL for zeros.
 * norms: [examples], to be written, or NULL.
 */
typedef struct {
    double *factors, *norms;
    const double *beside;
    double limit, room, regulariser;
    int are_given;
} gradient_scales;

/* Numbers of float64 that a thread needs. */
size_t example_gradients_room(const gradient_plan *plan, int are_kept);

/* Write norms and factors, if they are asked for, and Σ factor_i·P_i to the first of totals [parts][one gradient], unless
 * they are NULL. Part k has examples k·examples/parts to (k + 1)·examples/parts, added in that order; then parts are added.
 *
 * rooms: [threads][example_gradients_room], at multiples of 64 bytes.
 * held: [examples][one gradient], all gradients, to be written; or NULL. Without totals alone.
 */
void example_gradients(const gradient_plan *plan, size_t examples, const gradient_scales *scales, size_t parts,
                       double *totals, double *rooms, float *held, int threads);

/* Write Σ factors_i·held_i to total [size], of gradients held [examples][size]; the examples are added in their order. An
 * example whose factor is 0 adds nothing.
 */
void sum_held(const float *held, size_t examples, size_t size, const double *factors, double *total, int threads);

#endif
