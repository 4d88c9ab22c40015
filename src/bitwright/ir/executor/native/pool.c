/* SPDX-License-Identifier: Apache-2.0 */
/* Helper threads that join a job if they come in time. The caller never waits for one that has not begun, so a busy
 * machine costs speed but not latency (an OpenMP region ends only when every thread has been scheduled once).
 */
#include "plan.h"

#ifdef BW_NO_THREADS

int bw_together(int threads, bw_job job, void *context) {
  (void)threads;
  job(context, 0);
  return 1;
}

#else

#include <pthread.h>
#include <stddef.h>

#define MAX_HELPERS 255
#define SPINS 1000 /* a helper looks for the next job this often before it sleeps: some 20 microseconds */

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t work = PTHREAD_COND_INITIALIZER, done = PTHREAD_COND_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static int helpers;    /* threads that exist */
static int busy;       /* a caller owns the pool */
static int open_seats; /* helpers that may still join; read without the lock while spinning */
static int joined;     /* helpers that have joined this job */
static int active;     /* helpers inside the job */
static bw_job current;
static void *argument;

static void *help(void *unused) {
  (void)unused;
  pthread_mutex_lock(&lock);
  for (;;) {
    while (open_seats == 0) pthread_cond_wait(&work, &lock);
    __atomic_store_n(&open_seats, open_seats - 1, __ATOMIC_RELAXED);
    const int seat = ++joined;
    active++;
    const bw_job job = current;
    void *context = argument;
    pthread_mutex_unlock(&lock);
    job(context, seat);
    pthread_mutex_lock(&lock);
    if (--active == 0) pthread_cond_signal(&done);
    pthread_mutex_unlock(&lock);
    for (int i = 0; i < SPINS && __atomic_load_n(&open_seats, __ATOMIC_RELAXED) == 0; i++) bw_pause();
    pthread_mutex_lock(&lock);
  }
  return NULL;
}

/* A forked child has none of the threads. */
static void after_fork(void) {
  pthread_mutex_init(&lock, NULL);
  pthread_cond_init(&work, NULL);
  pthread_cond_init(&done, NULL);
  helpers = busy = open_seats = joined = active = 0;
}

static void watch_forks(void) { pthread_atfork(NULL, NULL, after_fork); }

static void add_helpers(int count) {
  pthread_attr_t detached;
  if (pthread_attr_init(&detached) != 0) return;
  pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
  for (pthread_t id; helpers < count; helpers++)
    if (pthread_create(&id, &detached, help, NULL) != 0) break;
  pthread_attr_destroy(&detached);
}

/* Calls job(context, 0) here and job(context, 1 ...) in at most threads - 1 helpers; returns when all that began have
 * ended. The job must get done even if no helper comes. If another caller has the helpers, it runs here alone. */
int bw_together(int threads, bw_job job, void *context) {
  int seats = threads - 1 < MAX_HELPERS ? threads - 1 : MAX_HELPERS;
  pthread_once(&once, watch_forks);
  pthread_mutex_lock(&lock);
  if (busy || seats < 1) {
    pthread_mutex_unlock(&lock);
    job(context, 0);
    return 1;
  }
  if (helpers < seats) add_helpers(seats);
  busy = 1;
  joined = 0;
  current = job;
  argument = context;
  __atomic_store_n(&open_seats, seats, __ATOMIC_RELAXED);
  pthread_cond_broadcast(&work);
  pthread_mutex_unlock(&lock);
  job(context, 0);
  pthread_mutex_lock(&lock);
  __atomic_store_n(&open_seats, 0, __ATOMIC_RELAXED);
  while (active > 0) pthread_cond_wait(&done, &lock);
  const int workers = 1 + joined;
  busy = 0;
  pthread_mutex_unlock(&lock);
  return workers;
}

#endif
