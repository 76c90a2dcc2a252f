/* Another wall clock for one process: SKEW seconds ahead, or behind. Everything monotonic is left as it is, as on a host
   whose clock is wrong. What waits until a time of that clock is told the true one. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <semaphore.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/time.h>
#include <time.h>

static long skew(void) {
    static long seconds;
    static int known;
    if (!known) {
        const char *text = getenv("SKEW");
        seconds = text ? atol(text) : 0;
        known = 1;
    }
    return seconds;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int code = real(clock, now);
    if (!code && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) now->tv_sec += skew();
    return code;
}

int gettimeofday(struct timeval *now, void *zone) {
    static int (*real)(struct timeval *, void *);
    if (!real) real = dlsym(RTLD_NEXT, "gettimeofday");
    int code = real(now, zone);
    if (!code) now->tv_sec += skew();
    return code;
}

time_t time(time_t *out) {
    static time_t (*real)(time_t *);
    if (!real) real = dlsym(RTLD_NEXT, "time");
    time_t now = real(NULL) + skew();
    if (out) *out = now;
    return now;
}

int sem_timedwait(sem_t *semaphore, const struct timespec *until) {
    static int (*real)(sem_t *, const struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "sem_timedwait");
    struct timespec true_time = *until;
    true_time.tv_sec -= skew();
    return real(semaphore, &true_time);
}

int pthread_mutex_timedlock(pthread_mutex_t *mutex, const struct timespec *until) {
    static int (*real)(pthread_mutex_t *, const struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "pthread_mutex_timedlock");
    struct timespec true_time = *until;
    true_time.tv_sec -= skew();
    return real(mutex, &true_time);
}
