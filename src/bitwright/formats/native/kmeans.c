// SPDX-License-Identifier: Apache-2.0
// The cheapest path 0 -> n where a link i -> j costs `price` plus the squared error of the sorted
// values i .. j-1 around their mean. This is the inner loop of `formats/clustering_path.py`, which
// has the same in Python, operation by operation: compiled without fused multiply-add, both give
// the same bits.
#include <stdint.h>

// Prefix sums of weight, weight * value, weight * value^2, each as a double and what it left over.
typedef struct {
    double w, wl, s, sl, q, ql;
} Sum;

static inline double link_cost(const Sum *a, const Sum *b)
{
    double w = (b->w - a->w) + (b->wl - a->wl);
    double s = (b->s - a->s) + (b->sl - a->sl);
    double q = (b->q - a->q) + (b->ql - a->ql);
    double cost = w > 0 ? q - s * s / w : 0; // weights may be too small to count
    return cost > 0 ? cost : 0;
}

static inline double via(const Sum *sums, const double *best, int64_t i, int64_t j)
{
    return best[i] + link_cost(sums + i, sums + j);
}

// The first j in (low, n] at which `later` is as good as `earlier`; n + 1 if there is none. Costs
// obey the quadrangle inequality, so once the later start is as good it stays so.
static int64_t crossing(const Sum *sums, const double *best, int64_t earlier, int64_t later,
                        int64_t low, int64_t n)
{
    int64_t high = n + 1;
    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2;
        if (via(sums, best, later, middle) <= via(sums, best, earlier, middle))
            high = middle;
        else
            low = middle;
    }
    return high;
}

// best (n + 1), from (n + 1), start (n + 1), queue (n + 1): work space. Returns the links of the path.
int64_t bw_kmeans_path(const Sum *sums, int64_t n, double price, double *best, int32_t *from,
                       int32_t *queue, int32_t *start)
{
    int64_t head = 0, tail = 0; // candidates queue[head .. tail], each best from start[] on
    best[0] = 0;
    from[0] = 0;
    queue[0] = 0;
    start[0] = 1;
    for (int64_t j = 1; j <= n; j++) {
        while (head < tail && start[head + 1] <= j)
            head++;
        int64_t i = queue[head];
        best[j] = via(sums, best, i, j) + price;
        from[j] = (int32_t)i;
        if (j == n)
            break;
        // A candidate that the new one beats from its own start on is never the best again.
        while (tail > head && start[tail] > j &&
               via(sums, best, j, start[tail]) <= via(sums, best, queue[tail], start[tail]))
            tail--;
        int64_t low = start[tail] > j ? start[tail] : j;
        int64_t at = crossing(sums, best, queue[tail], j, low, n);
        if (at <= n) {
            tail++;
            queue[tail] = (int32_t)j;
            start[tail] = (int32_t)at;
        }
    }
    int64_t links = 0;
    for (int64_t j = n; j > 0; j = from[j])
        links++;
    return links;
}
