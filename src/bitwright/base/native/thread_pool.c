// SPDX-License-Identifier: Apache-2.0
#include "thread_pool.h"

#ifndef BW_NO_THREADS
#include <pthread.h>
#endif

typedef void (*Fork)(void (*)(void *), void *, unsigned, unsigned);
static Fork library_fork;

void bw_use_fork(void *fork)
{
    library_fork = (Fork)fork;
}

#ifndef BW_NO_THREADS
typedef struct {
    void (*work)(void *);
    void *job;
} Start;

static void *begin(void *given)
{
    const Start *start = given;
    start->work(start->job);
    return 0;
}
#endif

void bw_run_threads(void (*work)(void *), void *job, int64_t threads)
{
    if (threads > 1 && library_fork) {
        library_fork(work, job, (unsigned)threads, 0);
        return;
    }
#ifndef BW_NO_THREADS
    enum { MOST = 63 };
    Start start = {work, job};
    pthread_t others[MOST];
    int64_t started = 0;
    while (started < threads - 1 && started < MOST
           && !pthread_create(&others[started], 0, begin, &start))
        started++;
    work(job);
    for (int64_t i = 0; i < started; i++)
        pthread_join(others[i], 0);
#else
    (void)threads;
    work(job);
#endif
}
