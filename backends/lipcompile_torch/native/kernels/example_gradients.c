/* Weight gradients P_i of examples: their norms, and sums Σ s_i·P_i, of which a few are held at a time, or all if asked for.
 *
 * P_i = Σ_t a_t·b_tᵀ is a sum over positions t of products of what a layer read and of the cotangent of what it made. The
 * caller says where both lie (see outer_products.py); nothing here knows what a convolution is.
 *
 * Formal guarantees: P̃_i has the same bits whatever stands beside example i in the batch, whatever is done with it, and on
 * every processor with fused operations. With n positions in the longest run and m runs, it is off by at most
 *
 *     ‖P̃_i - P_i‖ ≤ γ_k·‖Σ_t |a_t|·|b_t|ᵀ‖ ≤ γ_k·Σ_t ‖a_t‖·‖b_t‖,    k = n + m - 1,  γ_k = k·u/(1 - k·u),  u = 2^-24,
 *
 * but for underflow. Proof. A product enters the sum of its run by a fused operation and is rounded with it, and again
 * with every product after it: n times at most. (So it would be without fused operations: the first sum is not rounded.) The sum of a run is rounded with every sum of runs that is added to it or
 * that it is added to: m - 1 times at most. So fl(Σ_t a_t·b_t) = Σ_t a_t·b_t·(1 + θ_t) with |θ_t| ≤ γ_k in every entry
 * (Higham, "Accuracy and stability of numerical algorithms", 2002, lemma 3.1). Then |P̃_i - P_i| ≤ γ_k·Σ_t |a_t|·|b_t|ᵀ in
 * every entry, the norm of a matrix of moduli grows with its entries, and that of a product is the product of norms. ∎
 *
 * Squares of entries are added in float64, one after the other in each of the lanes, and lanes one after the other, so a
 * norm is off by a relative (entries + 3)·2^-53 at most. The sum over examples is in float64, each product fused with
 * its addition; an example whose factor is 0 is left out, so that one with infinities or NaN adds nothing.
 */
#include <math.h>
#include <string.h>

#include "example_gradients.h"

#if HAS_TILES

#define MOST_TOGETHER 8          /* examples of a group */
#define CACHED ((size_t)1 << 17) /* floats of their operands, a quarter of a second-level cache */
#define KEPT ((size_t)1 << 18)   /* floats of their gradients */
#define CHUNK ((size_t)512)      /* entries of totals that are added to at once */
#define LINE ((size_t)8)         /* numbers of float64 in a line of the cache */
#define TILE_ROOM (MOST_TILE_ENTRIES * MOST_TILE_VECTORS * LANES)

/* What a thread works in: examples of a group, side by side. */
typedef struct {
    float *lanes, *entries, *tile, *kept, *widened;
    double *squares; /* [together][units][width] */
} workplace;

typedef struct {
    const tile_kind *tiles;
    const gradient_plan *plan;
    const gradient_scales *scales;
    size_t examples, parts, size, positions, together, room;
    double *totals, *rooms;
    float *held;
    int are_kept, threads;
} gradient_work;

/* Memory that is fetched little by little before it is needed. */
typedef struct {
    const char *next, *end;
    size_t step;
} fetched;

/* Examples begin to end of a part; and what is needed after them, of both operands, and after a tile, of the total. */
typedef struct {
    size_t begin, end, part;
    const workplace *in;
    fetched ahead[PLACES_AHEAD];
} group;

/* --- rooms --- */

static size_t in_doubles(size_t floats) { return (floats + LINE * 2 - 1) / (LINE * 2) * LINE; }

static size_t size_of(const gradient_plan *plan) {
    return plan->unit_count * plan->row_count * plan->row_width * plan->width;
}

static size_t together_of(const gradient_plan *plan, int are_kept) {
    size_t fitting = at_most(CACHED / (plan->lanes.room + plan->entries.room + 1), MOST_TOGETHER);
    if (are_kept) fitting = at_most(fitting, KEPT / (size_of(plan) + 1));
    return fitting > 0 ? fitting : 1;
}

/* Write where things lie, and return how many numbers they take. */
static size_t arrange(const gradient_plan *plan, int are_kept, double *room, workplace *found) {
    size_t together = together_of(plan, are_kept), size = LINE; /* the first one says whether it is free */
    size_t lanes = size;
    size += in_doubles(together * plan->lanes.room);
    size_t entries = size;
    size += in_doubles(together * plan->entries.room);
    size_t one_tile = size;
    size += in_doubles(TILE_ROOM);
    size_t kept = size;
    size += are_kept ? in_doubles(together * size_of(plan)) : 0;
    size_t widened = size;
    size += in_doubles(plan->lanes.extent > plan->entries.extent ? plan->lanes.extent : plan->entries.extent);
    size_t squares = size;
    size += together * plan->unit_count * plan->width;
    if (found != NULL)
        *found = (workplace){(float *)(room + lanes), (float *)(room + entries), (float *)(room + one_tile),
                             (float *)(room + kept),  (float *)(room + widened), room + squares};
    return (size + LINE - 1) / LINE * LINE;
}

size_t example_gradients_room(const gradient_plan *plan, int are_kept) { return arrange(plan, are_kept, NULL, NULL); }

enum { FRESH, FREE, TAKEN }; /* the first number of a room */

/* Return a room, zeros but for what examples wrote to it: there are as many as threads, so one is free. */
static double *take_room(const gradient_work *all) {
    for (size_t i = 0;; i = (i + 1) % (size_t)all->threads) {
        double *room = all->rooms + i * all->room;
        int64_t before = __atomic_exchange_n((int64_t *)(void *)room, TAKEN, __ATOMIC_ACQUIRE);
        if (before == FRESH) memset(room + LINE, 0, (all->room - LINE) * sizeof *room);
        if (before != TAKEN) return room;
    }
}

static void leave_room(double *room, int64_t as) { __atomic_store_n((int64_t *)(void *)room, as, __ATOMIC_RELEASE); }

/* --- tiles --- */

/* A tile of a unit: so many of its rows from `row` on, or some entries of one, `place` in its gradient. */
typedef struct {
    size_t unit, row, rows, first, width, place;
} chosen;

/* Have memory fetched during the products of so many tiles. */
static void look_ahead(const gradient_work *all, const void *memory, size_t bytes, size_t tiles, fetched *found) {
    found->next = memory, found->end = found->next + bytes;
    found->step = at_most(bytes / (tiles * all->positions) + 1, 64);
}

/* Tell a tile what to fetch meanwhile, until everything is there. */
static void fetch_ahead(group *some, size_t positions, tile *found) {
    for (int i = 0; i < PLACES_AHEAD; i++) {
        size_t left = (size_t)(some->ahead[i].end - some->ahead[i].next);
        found->ahead[i] = some->ahead[i].next;
        found->ahead_step[i] = at_most(some->ahead[i].step, left / positions);
        some->ahead[i].next += found->ahead_step[i] * positions;
    }
}

static void multiply_chosen(const gradient_work *all, const chosen *which, group *some, size_t own, float *found) {
    const gradient_plan *plan = all->plan;
    const unit *unit = plan->units + which->unit;
    const float *entries = some->in->entries + own * plan->entries.room + unit->entries;
    tile one = {.lanes = some->in->lanes + own * plan->lanes.room + unit->lanes,
                .lanes_step = plan->lanes_step,
                .entries_step = plan->entries_step,
                .entry_step = plan->entry_step,
                .segments = plan->segments,
                .segment_count = plan->segment_count,
                .rows = which->rows,
                .width = which->width,
                .vectors = (size_t)unit->vectors,
                .by_lane = plan->by_lane};
    for (size_t r = 0; r < which->rows; r++)
        one.entries[r] = entries + plan->rows[which->row + r] + which->first * plan->entry_step;
    fetch_ahead(some, all->positions, &one);
    all->tiles->multiply(&one, plan->width, found);
}

/* Make a tile of the gradients of a group of examples, and do with it what can be done before their norms are known. */
static void work_on(const gradient_work *all, const chosen *which, group *some) {
    const gradient_plan *plan = all->plan;
    const workplace *in = some->in;
    size_t width = plan->width, count = which->rows * which->width, chains = plan->unit_count * width;
    double *total = NULL;
    if (all->totals != NULL && !all->are_kept) {
        total = all->totals + some->part * all->size + which->place;
        look_ahead(all, total + count * width, count * width * sizeof *total, some->end - some->begin, &some->ahead[2]);
    }
    for (size_t i = some->begin; i < some->end; i++) {
        size_t own = i - some->begin;
        double factor = all->scales->factors != NULL && all->scales->are_given ? all->scales->factors[i] : 1.0;
        float *found = all->held != NULL ? all->held + i * all->size + which->place
                       : all->are_kept   ? in->kept + own * all->size + which->place
                                         : in->tile;
        if (factor == 0.0) continue;
        multiply_chosen(all, which, some, own, found);
        if (all->scales->norms != NULL)
            all->tiles->add_squares(found, count, width, in->squares + own * chains + which->unit * width);
        if (total != NULL) all->tiles->add_multiple(found, count * width, factor, total);
    }
}

/* Cut the rows of a unit into tiles: several rows in one where they are short. */
static void work_on_unit(const gradient_work *all, size_t number, group *some) {
    const gradient_plan *plan = all->plan;
    size_t most = all->tiles->entries, place = number * (all->size / plan->unit_count);
    size_t width = plan->row_width, tiles = (width + most - 1) / most;
    size_t fitting = (plan->width == LANES ? all->tiles->entries_alone : most) / width;
    size_t together = tiles > 1 ? 1 : at_most(fitting, MOST_TILE_ROWS);
    for (size_t row = 0, rows = 1; row < plan->row_count; row += rows) {
        rows = at_most(plan->row_count - row, together);
        for (size_t t = 0; t < tiles; t++) {
            size_t first = width * t / tiles, after = width * (t + 1) / tiles;
            chosen which = {number, row, rows, first, after - first, place};
            work_on(all, &which, some);
            place += rows * (after - first) * plan->width;
        }
    }
}

/* --- norms --- */

/* The sum over the lanes of all units that are there. */
static double sum_of_lanes(const gradient_plan *plan, const double *squares) {
    double sum = 0;
    for (size_t u = 0; u < plan->unit_count; u++)
        for (int64_t l = 0; l < plan->units[u].count; l++) sum += squares[u * plan->width + (size_t)l];
    return sum;
}

static double factor_of(const gradient_scales *scales, double norm) {
    if (!(norm <= DBL_MAX)) return 0.0;
    return norm <= scales->limit ? 1.0 : scales->room / (norm + scales->regulariser);
}

/* Write the norms of a group and, where gradients are kept, their factors, and add them to a total. */
static void finish(const gradient_work *all, const group *some) {
    const workplace *in = some->in;
    size_t begin = some->begin, end = some->end;
    const gradient_scales *scales = all->scales;
    size_t chains = all->plan->unit_count * all->plan->width;
    for (size_t i = begin; i < end; i++) {
        double square = sum_of_lanes(all->plan, in->squares + (i - begin) * chains);
        scales->norms[i] = sqrt(square + (scales->beside == NULL ? 0.0 : scales->beside[i]));
        if (all->are_kept) scales->factors[i] = factor_of(scales, scales->norms[i]);
    }
    for (size_t first = 0; all->are_kept && first < all->size; first += CHUNK)
        for (size_t i = begin; i < end; i++)
            if (scales->factors[i] != 0.0)
                all->tiles->add_multiple(in->kept + (i - begin) * all->size + first, at_most(all->size - first, CHUNK),
                             scales->factors[i], all->totals + some->part * all->size + first);
}

/* --- examples --- */

static void work_on_group(const gradient_work *all, size_t count_after, group *some) {
    const gradient_plan *plan = all->plan;
    const workplace *in = some->in;
    size_t count = some->end - some->begin, tiles = all->size / plan->width / all->tiles->entries * count + 1;
    const operand *operands[2] = {&plan->lanes, &plan->entries};
    for (size_t i = 0; i < count; i++) {
        pack(&plan->lanes, some->begin + i, in->widened, in->lanes + i * plan->lanes.room);
        pack(&plan->entries, some->begin + i, in->widened, in->entries + i * plan->entries.room);
    }
    for (int i = 0; i < 2; i++) {
        const char *next = example_at(operands[i], some->end), *end = example_at(operands[i], some->end + count_after);
        look_ahead(all, next, (size_t)(end - next), tiles, &some->ahead[i]);
    }
    memset(in->squares, 0, count * plan->unit_count * plan->width * sizeof *in->squares);
    for (size_t u = 0; u < plan->unit_count; u++) work_on_unit(all, u, some);
    if (all->scales->norms != NULL) finish(all, some);
}

static void work_on_parts(void *context, size_t first, size_t last) {
    const gradient_work *all = context;
    double *room = take_room(all);
    workplace in;
    arrange(all->plan, all->are_kept, room, &in);
    for (size_t part = first; part < last; part++) {
        if (all->totals != NULL) memset(all->totals + part * all->size, 0, all->size * sizeof *all->totals);
        size_t end = (part + 1) * all->examples / all->parts;
        for (size_t i = part * all->examples / all->parts; i < end; i += all->together) {
            group some = {.begin = i, .end = i + at_most(end - i, all->together), .part = part, .in = &in};
            work_on_group(all, at_most(end - some.end, all->together), &some);
        }
    }
    leave_room(room, FREE);
}

/* Add the totals of all parts to that of the first one, in their order. */
static void add_parts(void *context, size_t begin, size_t end) {
    const gradient_work *all = context;
    for (size_t part = 1; part < all->parts; part++)
        for (size_t i = begin; i < end; i++) all->totals[i] += all->totals[part * all->size + i];
}

void example_gradients(const gradient_plan *plan, size_t examples, const gradient_scales *scales, size_t parts,
                       double *totals, double *rooms, float *held, int threads) {
    int are_kept = scales->norms != NULL && totals != NULL;
    size_t positions = 0;
    for (size_t i = 0; i < plan->segment_count; i++) positions += (size_t)plan->segments[i].count;
    gradient_work all = {tiles_at_hand(),
                         plan,
                         scales,
                         examples,
                         parts,
                         size_of(plan),
                         positions,
                         together_of(plan, are_kept),
                         example_gradients_room(plan, are_kept),
                         totals,
                         rooms,
                         held,
                         are_kept,
                         threads};
    for (int t = 0; t < threads; t++) leave_room(rooms + (size_t)t * all.room, FRESH);
    in_stretches(parts, 1, threads, work_on_parts, &all);
    if (totals != NULL) in_stretches(all.size, CHUNK, threads, add_parts, &all);
}

/* --- gradients that are held --- */

typedef struct {
    const tile_kind *tiles;
    const float *held;
    size_t examples, size;
    const double *factors;
    double *total;
} held_gradients;

static void sum_entries(void *context, size_t begin, size_t end) {
    const held_gradients *all = context;
    memset(all->total + begin, 0, (end - begin) * sizeof *all->total);
    for (size_t i = 0; i < all->examples; i++)
        if (all->factors[i] != 0.0)
            all->tiles->add_multiple(all->held + i * all->size + begin, end - begin, all->factors[i], all->total + begin);
}

void sum_held(const float *held, size_t examples, size_t size, const double *factors, double *total, int threads) {
    held_gradients all = {tiles_at_hand(), held, examples, size, factors, total};
    in_stretches(size, CHUNK, threads, sum_entries, &all);
}

#endif
