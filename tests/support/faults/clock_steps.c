/* A wall clock that can be stepped while a program runs, for LD_PRELOAD. The file named by CLOCK_STEPS holds one 64-bit
   number: nanoseconds that are added to the clock. Waits until a time on a clock that was stepped take as long as
   without. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#define SECOND 1000000000LL
#define REAL(name) ((__typeof__(&name))real(#name))

static const volatile long long none, *steps = &none;

static void *real(const char *name) {
    void *found = dlvsym(RTLD_NEXT, name, "GLIBC_2.3.2");  /* of condition variables; the older ones are of another size */
    return found ? found : dlsym(RTLD_NEXT, name);
}

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("CLOCK_STEPS");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    void *at = file < 0 ? MAP_FAILED : mmap(NULL, sizeof(long long), PROT_READ, MAP_SHARED, file, 0);
    if (file >= 0) close(file);
    if (at != MAP_FAILED) steps = at;
}

static long long step(clockid_t clock) {
    switch (clock) {
    case CLOCK_REALTIME: case CLOCK_REALTIME_COARSE: case CLOCK_TAI: return *steps;
    default: return 0;
    }
}

static struct timespec moved(const struct timespec *from, long long by) {
    long long all = from->tv_sec * SECOND + from->tv_nsec + by;
    return (struct timespec){all < 0 ? 0 : all / SECOND, all < 0 ? 0 : all % SECOND};
}

int clock_gettime(clockid_t clock, struct timespec *out) {
    static __typeof__(&clock_gettime) call;
    if (!call) call = REAL(clock_gettime);
    int failed = call(clock, out);
    if (!failed) *out = moved(out, step(clock));
    return failed;
}

int gettimeofday(struct timeval *restrict out, void *restrict zone) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    *out = (struct timeval){now.tv_sec, now.tv_nsec / 1000};
    return 0;
}

time_t time(time_t *out) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (out) *out = now.tv_sec;
    return now.tv_sec;
}

int clock_nanosleep(clockid_t clock, int flags, const struct timespec *until, struct timespec *left) {
    struct timespec at = moved(until, flags & TIMER_ABSTIME ? -step(clock) : 0);
    return REAL(clock_nanosleep)(clock, flags, &at, left);
}

int sem_clockwait(sem_t *restrict sem, clockid_t clock, const struct timespec *restrict until) {
    struct timespec at = moved(until, -step(clock));
    return REAL(sem_clockwait)(sem, clock, &at);
}

int sem_timedwait(sem_t *restrict sem, const struct timespec *restrict until) {
    return sem_clockwait(sem, CLOCK_REALTIME, until);
}

int pthread_cond_clockwait(pthread_cond_t *restrict cond, pthread_mutex_t *restrict mutex, clockid_t clock,
                           const struct timespec *restrict until) {
    struct timespec at = moved(until, -step(clock));
    return REAL(pthread_cond_clockwait)(cond, mutex, clock, &at);
}

/* Which clock is the condition variable's own affair; a time since 1970 is larger than one since the machine started. */
int pthread_cond_timedwait(pthread_cond_t *restrict cond, pthread_mutex_t *restrict mutex,
                           const struct timespec *restrict until) {
    struct timespec at = moved(until, until->tv_sec > SECOND ? -step(CLOCK_REALTIME) : 0);
    return REAL(pthread_cond_timedwait)(cond, mutex, &at);
}
