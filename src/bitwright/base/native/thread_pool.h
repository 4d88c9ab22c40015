// SPDX-License-Identifier: Apache-2.0
// Several threads for one job.
#ifndef BW_THREAD_POOL_H
#define BW_THREAD_POOL_H
#include <stdint.h>

// Use this fork from now on: `GOMP_parallel` of a libgomp in this process, or NULL for threads of
// our own. Two pools on the same processors would wait for one another.
void bw_use_fork(void *fork);

// Calls `work(job)` in up to `threads` threads, at least once, and returns when all have; it takes
// its tasks from a counter in the job.
void bw_run_threads(void (*work)(void *), void *job, int64_t threads);
#endif
