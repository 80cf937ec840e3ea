/* `run --nproc N`: the ranks of one host as children of this process. */
#include "executor/launch_local.h"

#include "base/clock.h"
#include "executor/launch.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

enum { RANKS_MAX = 4096, TOKEN_BYTES = 16, SLICE_MILLISECONDS = 200 };

struct local_rank {
    pid_t process; /* 0: not started */
    bool ended;
    bool ended_by_us; /* it got SIGTERM or SIGKILL from here because another had failed */
    int result;       /* of waitpid */
    struct rk_output output;
};

struct local_job {
    int64_t count;
    struct local_rank *ranks; /* owned */
    const struct rk_log *log;
    double grace_seconds;
    int listener; /* of rank 0's exchange, or -1 */
    int32_t port;
    const char *address;
    char token[2 * TOKEN_BYTES + 1];
    int signals;          /* signalfd */
    sigset_t mask;        /* before the launch */
    pid_t group;          /* process group of the ranks */
    int64_t first_failed; /* or -1 */
    int interrupts;       /* forwarded, see is_interrupt */
    double end_at;        /* when the rest is killed; 0: not decided */
    bool asked_to_end;
    struct rk_held_errors held;
};

/* The listening socket is made here and handed down, so no port has to be guessed and nobody can take it in between. */
static enum rk_status listen_on_loopback(struct local_job *job, struct rk_error *error) {
    struct sockaddr_in v4 = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    struct sockaddr_in6 v6 = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    job->address = "127.0.0.1";
    job->listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (job->listener >= 0 && bind(job->listener, (struct sockaddr *)&v4, sizeof v4) != 0) {
        close(job->listener);
        job->listener = -1;
    }
    if (job->listener < 0) {
        job->address = "::1";
        job->listener = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (job->listener < 0 || bind(job->listener, (struct sockaddr *)&v6, sizeof v6) != 0)
            return rk_fail(error, RK_ERROR, "no loopback address for the ranks to meet at: %s", strerror(errno));
    }
    struct sockaddr_storage bound;
    socklen_t length = sizeof bound;
    if (listen(job->listener, SOMAXCONN) != 0 || getsockname(job->listener, (struct sockaddr *)&bound, &length) != 0)
        return rk_fail(error, RK_ERROR, "no port for the ranks to meet at: %s", strerror(errno));
    struct sockaddr_in address; /* the port lies at the same place in both families */
    memcpy(&address, &bound, sizeof address);
    job->port = ntohs(address.sin_port);
    return RK_OK;
}

static enum rk_status make_token(struct local_job *job, struct rk_error *error) {
    unsigned char bytes[TOKEN_BYTES];
    if (getrandom(bytes, sizeof bytes, 0) != (ssize_t)sizeof bytes)
        return rk_fail(error, RK_ERROR, "no random number for the job: %s", strerror(errno));
    for (int i = 0; i < TOKEN_BYTES; i++)
        snprintf(job->token + 2 * i, 3, "%02x", bytes[i]);
    return RK_OK;
}

/* Signals that ask a job to end in order: Ctrl-C, a request, a terminal that went away. */
static bool is_interrupt(int number) {
    return number == SIGINT || number == SIGTERM || number == SIGHUP;
}

/* From here on signals come through the descriptor. No other thread of this process can take them instead: OpenBLAS,
 * which starts threads when it is loaded, ends them at a fork. */
static enum rk_status take_signals(struct local_job *job, struct rk_error *error) {
    static const int taken[] = {SIGCHLD, SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGTSTP};
    sigset_t set;
    sigemptyset(&set);
    for (size_t i = 0; i < sizeof taken / sizeof taken[0]; i++)
        sigaddset(&set, taken[i]);
    if (pthread_sigmask(SIG_BLOCK, &set, &job->mask) != 0)
        return rk_fail(error, RK_ERROR, "signals cannot be blocked: %s", strerror(errno));
    job->signals = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
    if (job->signals < 0) {
        int reason = errno;
        pthread_sigmask(SIG_SETMASK, &job->mask, NULL);
        return rk_fail(error, RK_ERROR, "signals cannot be received: %s", strerror(reason));
    }
    return RK_OK;
}

static void set_number(const char *name, int64_t value) {
    char text[24];
    snprintf(text, sizeof text, "%lld", (long long)value);
    setenv(name, text, 1);
}

static void set_environment(const struct local_job *job, int64_t rank) {
    rk_launch_forget_launchers();
    set_number("RANK", rank);
    set_number("WORLD_SIZE", job->count);
    set_number("LOCAL_RANK", rank);
    set_number("LOCAL_WORLD_SIZE", job->count);
    setenv("MASTER_ADDR", job->address, 1);
    set_number("MASTER_PORT", job->port);
    setenv("RECKON_JOB_TOKEN", job->token, 1);
    if (rank == 0)
        set_number("RECKON_LISTENER", job->listener);
}

/* Rank 0 has this process's output; the others write into a pipe. A rank has no use for a terminal's input, and reading
 * it from a background group would stop the rank. */
static bool set_descriptors(const struct local_job *job, int64_t rank, int output) {
    if (rank != 0 || isatty(STDIN_FILENO)) {
        int nothing = open("/dev/null", O_RDONLY | O_CLOEXEC);
        if (nothing < 0 || dup2(nothing, STDIN_FILENO) < 0)
            return false;
    }
    if (rank == 0)
        return fcntl(job->listener, F_SETFD, 0) == 0;
    return dup2(output, STDOUT_FILENO) >= 0 && dup2(output, STDERR_FILENO) >= 0;
}

/* The child's side of the fork; does not return. */
static _Noreturn void become_rank(const struct local_job *job, int64_t rank, int output, pid_t parent,
                                  char *const *arguments) {
    /* Dies with the parent, whatever kills that; it may have died before this line. */
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(RK_RANK_FAILED);
    /* A group of their own: the terminal's signals reach the ranks once, through the parent. */
    setpgid(0, job->group);
    set_environment(job, rank);
    if (set_descriptors(job, rank, output)) {
        pthread_sigmask(SIG_SETMASK, &job->mask, NULL);
        execv("/proc/self/exe", arguments);
    }
    dprintf(STDERR_FILENO, "error: rank %lld cannot be started: %s\n", (long long)rank, strerror(errno));
    _exit(RK_ERROR);
}

static enum rk_status start_rank(struct local_job *job, int64_t rank, char *const *arguments, struct rk_error *error) {
    struct local_rank *started = &job->ranks[rank];
    int ends[2] = {-1, -1};
    if (rank != 0 && pipe2(ends, O_CLOEXEC) != 0)
        return rk_fail(error, RK_ERROR, "rank %lld cannot be started: %s; ask for fewer ranks or raise ulimit -n",
                       (long long)rank, strerror(errno));
    if (rank != 0)
        fcntl(ends[0], F_SETFL, O_NONBLOCK);
    pid_t parent = getpid();
    fflush(NULL);
    pid_t process = fork();
    if (process == 0)
        become_rank(job, rank, ends[1], parent, arguments);
    int reason = errno;
    if (rank != 0)
        close(ends[1]);
    if (process < 0) {
        if (rank != 0)
            close(ends[0]);
        return rk_fail(error, RK_ERROR, "rank %lld cannot be started: %s; ask for fewer ranks or raise ulimit -u",
                       (long long)rank, strerror(reason));
    }
    /* Both sides set the group, because either may run first. */
    if (job->group == 0)
        job->group = process;
    setpgid(process, job->group);
    started->process = process;
    started->output.descriptor = ends[0];
    return RK_OK;
}

static void signal_all(struct local_job *job, int number, bool ours) {
    for (int64_t rank = 0; rank < job->count; rank++) {
        struct local_rank *running = &job->ranks[rank];
        if (running->process == 0 || running->ended)
            continue;
        kill(running->process, number);
        running->ended_by_us = running->ended_by_us || ours;
    }
}

static bool succeeded(const struct local_rank *rank) {
    return WIFEXITED(rank->result) && WEXITSTATUS(rank->result) == RK_OK;
}

static bool blames_another(const struct local_rank *rank) {
    return WIFEXITED(rank->result) && WEXITSTATUS(rank->result) == RK_RANK_FAILED;
}

/* A rank that reports the failure of another is not the first to fail, even when it ends first. */
static void note_end(struct local_job *job, int64_t rank) {
    const struct local_rank *ended = &job->ranks[rank];
    if (succeeded(ended) || ended->ended_by_us)
        return;
    if (job->first_failed < 0 || (blames_another(&job->ranks[job->first_failed]) && !blames_another(ended)))
        job->first_failed = rank;
    if (job->end_at == 0)
        job->end_at = rk_clock_seconds() + job->grace_seconds;
}

static int64_t reap(struct local_job *job) {
    int64_t running = 0;
    for (int64_t rank = 0; rank < job->count; rank++) {
        struct local_rank *child = &job->ranks[rank];
        if (child->process == 0 || child->ended)
            continue;
        pid_t reaped;
        do
            reaped = waitpid(child->process, &child->result, WNOHANG);
        while (reaped < 0 && errno == EINTR);
        if (reaped == child->process) {
            child->ended = true;
            note_end(job, rank);
        } else {
            running++;
        }
    }
    return running;
}

static void forward_signals(struct local_job *job) {
    struct signalfd_siginfo information;
    while (read(job->signals, &information, sizeof information) == (ssize_t)sizeof information) {
        int number = (int)information.ssi_signo;
        if (number == SIGCHLD)
            continue;
        if (number == SIGTSTP) {
            /* Ctrl-Z stops the whole job, and the shell's fg continues it. */
            signal_all(job, SIGSTOP, false);
            raise(SIGSTOP);
            signal_all(job, SIGCONT, false);
            continue;
        }
        signal_all(job, number, false);
        if (is_interrupt(number)) {
            job->interrupts++;
            if (job->interrupts > 1 && job->end_at == 0)
                job->end_at = rk_clock_seconds() + job->grace_seconds;
        }
    }
}

/* Half of the grace is for the ranks to find out for themselves and say what they saw. */
static void end_the_rest(struct local_job *job) {
    if (job->end_at == 0)
        return;
    double left = job->end_at - rk_clock_seconds();
    if (left <= 0) {
        signal_all(job, SIGKILL, true);
    } else if (left <= job->grace_seconds / 2 && !job->asked_to_end) {
        signal_all(job, SIGTERM, true);
        job->asked_to_end = true;
    }
}

static void read_outputs(struct local_job *job) {
    for (int64_t rank = 0; rank < job->count; rank++)
        if (job->ranks[rank].output.descriptor >= 0)
            rk_output_read(&job->ranks[rank].output, rank, job->log, &job->held);
}

static void watch(struct local_job *job) {
    struct pollfd *polled = calloc((size_t)job->count + 1, sizeof *polled);
    for (;;) {
        int64_t running = reap(job);
        read_outputs(job);
        if (running == 0)
            break;
        end_the_rest(job);
        /* Without memory for poll the loop still works, by the clock. */
        if (polled == NULL) {
            usleep(SLICE_MILLISECONDS * 1000);
        } else {
            polled[job->count] = (struct pollfd){.fd = job->signals, .events = POLLIN};
            for (int64_t rank = 0; rank < job->count; rank++)
                polled[rank] = (struct pollfd){.fd = job->ranks[rank].output.descriptor, .events = POLLIN};
            poll(polled, (nfds_t)job->count + 1, SLICE_MILLISECONDS);
        }
        forward_signals(job);
    }
    free(polled);
}

/* The exit status that all ranks share, or -1. */
static int common_status(const struct local_job *job) {
    int common = -1;
    for (int64_t rank = 0; rank < job->count; rank++) {
        if (!WIFEXITED(job->ranks[rank].result))
            return -1;
        int status = WEXITSTATUS(job->ranks[rank].result);
        if (rank > 0 && status != common)
            return -1;
        common = status;
    }
    return common;
}

/* After a forwarded interrupt: no rank failed for another reason. */
static bool was_interrupted(const struct local_job *job) {
    bool one = false;
    for (int64_t rank = 0; rank < job->count; rank++) {
        int result = job->ranks[rank].result;
        bool by_signal = WIFSIGNALED(result) && is_interrupt(WTERMSIG(result));
        bool by_itself = WIFEXITED(result) && WEXITSTATUS(result) == RK_INTERRUPTED;
        one = one || by_signal || by_itself;
        if (!by_signal && !by_itself && !job->ranks[rank].ended_by_us && !succeeded(&job->ranks[rank]) &&
            !blames_another(&job->ranks[rank]))
            return false;
    }
    return one && job->interrupts > 0;
}

static enum rk_status tell_first_failure(const struct local_job *job, struct rk_error *error) {
    const struct local_rank *first = &job->ranks[job->first_failed];
    const char *others = job->count > 1 ? "; the other ranks were ended" : "";
    if (WIFSIGNALED(first->result))
        return rk_fail(error, RK_RANK_FAILED, "rank %lld (process %d) was killed by signal %d (%s)%s",
                       (long long)job->first_failed, (int)first->process, WTERMSIG(first->result),
                       strsignal(WTERMSIG(first->result)), others);
    int status = WEXITSTATUS(first->result);
    return rk_fail(
        error, RK_RANK_FAILED, "rank %lld (process %d) ended with status %d (%s); its message stands above%s",
        (long long)job->first_failed, (int)first->process, status, rk_status_name((enum rk_status)status), others);
}

static enum rk_status tell_result(struct local_job *job, struct rk_error *error) {
    int common = common_status(job);
    /* Rank 0 has said what all say. */
    bool alike = common > RK_OK && common != RK_RANK_FAILED;
    rk_held_errors_release(&job->held, !alike, job->log);
    if (common == RK_OK)
        return RK_OK;
    if (was_interrupted(job))
        return rk_fail(error, RK_INTERRUPTED, "interrupted; all ranks have ended");
    if (alike && (common <= RK_DATABASE || common == RK_INTERRUPTED))
        return rk_fail(error, (enum rk_status)common,
                       "all %lld ranks ended with status %d (%s); the message of rank 0 "
                       "stands above",
                       (long long)job->count, common, rk_status_name((enum rk_status)common));
    if (job->first_failed < 0)
        return rk_fail(error, RK_RANK_FAILED, "the ranks were ended");
    return tell_first_failure(job, error);
}

static void free_job(struct local_job *job) {
    for (int64_t rank = 0; job->ranks != NULL && rank < job->count; rank++)
        rk_output_close(&job->ranks[rank].output, rank, job->log, &job->held);
    free(job->ranks);
    if (job->listener >= 0)
        close(job->listener);
}

enum rk_status rk_launch_local(int64_t nproc, char *const *arguments, const struct rk_log *log, double grace_seconds,
                               struct rk_error *error) {
    if (nproc < 1 || nproc > RANKS_MAX)
        return rk_fail(error, RK_USAGE, "--nproc %lld: a number from 1 to %d is expected", (long long)nproc, RANKS_MAX);
    struct local_job job = {.count = nproc,
                            .log = log,
                            .grace_seconds = grace_seconds,
                            .listener = -1,
                            .signals = -1,
                            .first_failed = -1,
                            .ranks = calloc((size_t)nproc, sizeof *job.ranks)};
    if (job.ranks == NULL)
        return rk_fail(error, RK_ERROR, "the ranks: out of memory");
    for (int64_t rank = 0; rank < nproc; rank++)
        job.ranks[rank].output.descriptor = -1;
    enum rk_status status = listen_on_loopback(&job, error);
    if (status == RK_OK)
        status = make_token(&job, error);
    if (status == RK_OK)
        status = take_signals(&job, error);
    if (status != RK_OK) {
        free_job(&job);
        return status;
    }
    for (int64_t rank = 0; rank < nproc && status == RK_OK; rank++)
        status = start_rank(&job, rank, arguments, error);
    if (status != RK_OK)
        signal_all(&job, SIGKILL, true);
    /* Rank 0 alone listens now: when it is gone, the others are refused at once. */
    close(job.listener);
    job.listener = -1;
    watch(&job);
    close(job.signals);
    pthread_sigmask(SIG_SETMASK, &job.mask, NULL);
    if (status == RK_OK)
        status = tell_result(&job, error);
    else
        rk_held_errors_release(&job.held, true, log);
    free_job(&job);
    return status;
}
