/* The meeting of the ranks among strangers, with ranks missing, late, doubled and of another mind; and the gathers
 * after it. */
#include "executor/exchange.h"

#include "base/clock.h"
#include "ranks.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cmocka.h>

static void pause_for(double seconds) {
    struct timespec time = {.tv_sec = (time_t)seconds};
    time.tv_nsec = (long)((seconds - (double)time.tv_sec) * 1e9);
    nanosleep(&time, NULL);
}

/* One rank with everything that may be wrong about it. */
struct visitor {
    struct rk_place place;
    uint8_t agreement[32];
    struct rk_peer self;
    double deadline, delay;
    enum rk_status expected;
    const char *words[2]; /* that the error must hold */
    int64_t gathers;
};

static _Noreturn void be_visitor(const struct visitor *visitor) {
    struct rk_job *job = NULL;
    struct rk_error error = {0};
    pause_for(visitor->delay);
    enum rk_status status =
        rk_launch_meet(&visitor->place, NULL, visitor->agreement, &visitor->self, visitor->deadline, &job, &error);
    if (status != visitor->expected)
        rank_check_failed(__FILE__, __LINE__, rk_status_name(status), error.text);
    for (int i = 0; i < 2 && visitor->words[i] != NULL; i++)
        if (strstr(error.text, visitor->words[i]) == NULL)
            rank_check_failed(__FILE__, __LINE__, visitor->words[i], error.text);
    for (int64_t round = 0; status == RK_OK && round < visitor->gathers; round++) {
        int64_t mine = visitor->place.rank * 1000 + round, all[RANKS_MAX];
        RANK_CHECK_OK(rk_job_all_gather(job, &mine, sizeof mine, all, &error), error);
        for (int64_t rank = 0; rank < visitor->place.world; rank++)
            RANK_CHECK(all[rank] == rank * 1000 + round);
    }
    rk_job_free(job);
    exit(0);
}

static pid_t start_visitor(const struct visitor *visitor) {
    fflush(NULL);
    pid_t process = fork();
    assert_true(process >= 0);
    if (process == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        be_visitor(visitor);
    }
    return process;
}

static void expect_zero(pid_t process) {
    int result;
    assert_int_equal(waitpid(process, &result, 0), process);
    assert_int_equal(result, 0);
}

static int free_port(void) {
    int32_t port;
    close(loopback_listener(&port));
    return port;
}

/* Visitors of a job on a fresh port, alike but for the rank. */
static void make_job(struct visitor *visitors, int world, const char *master) {
    int port = free_port();
    memset(visitors, 0, (size_t)world * sizeof *visitors);
    for (int rank = 0; rank < world; rank++) {
        visitors[rank].place = (struct rk_place){.rank = rank, .world = world, .port = port, .token = "the job"};
        snprintf(visitors[rank].place.master, sizeof visitors[rank].place.master, "%s", master);
        visitors[rank].deadline = 10;
        visitors[rank].gathers = 20;
    }
}

static void run_job(const struct visitor *visitors, int world) {
    pid_t processes[RANKS_MAX];
    for (int rank = 0; rank < world; rank++)
        processes[rank] = start_visitor(&visitors[rank]);
    for (int rank = 0; rank < world; rank++)
        expect_zero(processes[rank]);
}

static void ranks_meet_by_every_name(void **state) {
    (void)state;
    static const char *const names[] = {"127.0.0.1", "localhost", "::1", "127.0.1.1"};
    struct visitor visitors[4];
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        make_job(visitors, 4, names[i]);
        run_job(visitors, 4);
    }
    /* This host's own name is not a loopback name: rank 0 listens on all addresses, the others use the loopback one. */
    char host[128];
    assert_int_equal(gethostname(host, sizeof host), 0);
    make_job(visitors, 2, "127.0.0.1");
    snprintf(visitors[0].place.master, sizeof visitors[0].place.master, "%s", "0.0.0.0");
    run_job(visitors, 2);
}

static void a_late_rank_0_is_waited_for(void **state) {
    (void)state;
    struct visitor visitors[3];
    make_job(visitors, 3, "localhost");
    visitors[0].delay = 0.7;
    visitors[2].delay = 0.3;
    run_job(visitors, 3);
}

static int connect_to(int port) {
    int descriptor = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    for (int trial = 0; trial < 500; trial++) {
        if (connect(descriptor, (struct sockaddr *)&address, sizeof address) == 0)
            return descriptor;
        pause_for(0.01);
    }
    return -1;
}

/* Strangers of all kinds, before and between the ranks; those that hold on stay until the ranks have met. */
static _Noreturn void be_strangers(int port, int ready) {
    static char rubbish[1 << 20];
    struct rk_meet_hello hello;
    memset(rubbish, 0xFF, sizeof rubbish);
    signal(SIGPIPE, SIG_IGN);
    for (int i = 0; i < 100; i++) /* more silent ones than rank 0 keeps */
        connect_to(port);
    int http = connect_to(port);
    send(http, "GET / HTTP/1.1\r\nHost: x\r\n\r\n", 27, MSG_NOSIGNAL);
    int flood = connect_to(port);
    send(flood, rubbish, sizeof rubbish, MSG_NOSIGNAL | MSG_DONTWAIT);
    int huge = connect_to(port); /* our first words, then lengths of all ones */
    memset(&hello, 0xFF, sizeof hello);
    memcpy(hello.magic, RK_MEET_HELLO_MAGIC, sizeof hello.magic);
    send(huge, &hello, sizeof hello, MSG_NOSIGNAL);
    int half = connect_to(port);
    send(half, &hello, sizeof hello / 2, MSG_NOSIGNAL);
    int gone = connect_to(port);
    send(gone, &hello, 9, MSG_NOSIGNAL);
    close(gone);
    int other = connect_to(port); /* a rank of another job */
    memset(&hello, 0, sizeof hello);
    memcpy(hello.magic, RK_MEET_HELLO_MAGIC, sizeof hello.magic);
    snprintf(hello.token, sizeof hello.token, "another job");
    hello.rank = 1;
    hello.world = 4;
    send(other, &hello, sizeof hello, MSG_NOSIGNAL);
    struct rk_meet_answer answer;
    ssize_t got = recv(other, &answer, sizeof answer, MSG_WAITALL);
    if (got != (ssize_t)sizeof answer || answer.verdict != RK_MEET_OTHER_JOB)
        _exit(1);
    int slow = connect_to(port);
    if (write(ready, "x", 1) != 1)
        _exit(2);
    for (size_t i = 0; i < sizeof hello; i++) { /* byte by byte, for longer than the test */
        send(slow, (char *)&hello + i, 1, MSG_NOSIGNAL);
        pause_for(0.01);
    }
    pause();
    _exit(0);
}

static void strangers_do_no_harm(void **state) {
    (void)state;
    struct visitor visitors[4];
    int ready[2];
    char byte;
    make_job(visitors, 4, "127.0.0.1");
    assert_int_equal(pipe(ready), 0);
    pid_t processes[4], strangers;
    processes[0] = start_visitor(&visitors[0]);
    fflush(NULL);
    strangers = fork();
    if (strangers == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        be_strangers(visitors[0].place.port, ready[1]);
    }
    close(ready[1]);
    assert_int_equal(read(ready[0], &byte, 1), 1);
    close(ready[0]);
    double start = rk_clock_seconds();
    for (int rank = 1; rank < 4; rank++)
        processes[rank] = start_visitor(&visitors[rank]);
    for (int rank = 0; rank < 4; rank++)
        expect_zero(processes[rank]);
    assert_true(rk_clock_seconds() - start < 3);
    int result;
    assert_int_equal(waitpid(strangers, &result, WNOHANG), 0); /* they hold on all the while */
    kill(strangers, SIGKILL);
    waitpid(strangers, &result, 0);
}

static void missing_ranks_are_named(void **state) {
    (void)state;
    struct visitor visitors[6];
    make_job(visitors, 6, "127.0.0.1");
    for (int rank = 0; rank < 6; rank++) {
        visitors[rank].deadline = 1;
        visitors[rank].expected = RK_RANK_FAILED;
        visitors[rank].words[0] = ": 1, 3-4";
    }
    pid_t first = start_visitor(&visitors[0]), third = start_visitor(&visitors[2]), last = start_visitor(&visitors[5]);
    expect_zero(first);
    expect_zero(third);
    expect_zero(last);
    /* And when rank 0 is missing. */
    make_job(visitors, 2, "127.0.0.1");
    visitors[1].deadline = 0.5;
    visitors[1].expected = RK_RANK_FAILED;
    visitors[1].words[0] = "did not meet rank 0 at 127.0.0.1 port";
    visitors[1].words[1] = "refused";
    expect_zero(start_visitor(&visitors[1]));
}

/* All ranks must be told, also those that come when it is over for the others. */
static void disagreement_is_told_to_all(void **state) {
    (void)state;
    struct visitor visitors[3];
    for (int variant = 0; variant < 5; variant++) {
        make_job(visitors, 3, "127.0.0.1");
        visitors[2].delay = 0.3;
        for (int rank = 0; rank < 3; rank++) {
            visitors[rank].expected = RK_USAGE;
            visitors[rank].words[0] = "rank 1 ";
            snprintf(visitors[rank].self.device, sizeof visitors[rank].self.device, "GPU-%d", rank);
        }
        switch (variant) {
        case 0:
            visitors[1].agreement[31] = 1;
            visitors[0].words[1] = visitors[1].words[1] = visitors[2].words[1] = "another plan";
            break;
        case 1:
            visitors[1].place.world = 4;
            visitors[0].words[1] = visitors[1].words[1] = visitors[2].words[1] = "counts 4 ranks, rank 0 counts 3";
            break;
        case 2:
            visitors[1].self = visitors[0].self;
            visitors[0].words[0] = visitors[1].words[0] = visitors[2].words[0] = "ranks 0 and 1 share GPU GPU-0";
            break;
        case 3: /* a second rank 1 */
            visitors[2].place.rank = 1;
            visitors[0].words[0] = visitors[1].words[0] = visitors[2].words[0] = "are rank 1:";
            visitors[0].words[1] = visitors[1].words[1] = visitors[2].words[1] = "two processes";
            break;
        case 4: /* the first to come is the last in order */
            visitors[1].delay = 0.5;
            visitors[2].delay = 0;
            visitors[1].agreement[0] = 1;
            break;
        }
        run_job(visitors, 3);
    }
}

static void a_port_in_use_is_said_so(void **state) {
    (void)state;
    struct visitor visitors[2];
    make_job(visitors, 2, "127.0.0.1");
    int32_t port;
    int listener = loopback_listener(&port);
    visitors[0].place.port = port;
    visitors[0].expected = RK_ERROR;
    visitors[0].words[0] = "in use";
    visitors[0].words[1] = "--port";
    expect_zero(start_visitor(&visitors[0]));
    /* A program that is not ours behind the port: silent, then talkative. */
    visitors[1].place.port = port;
    visitors[1].deadline = 0.5;
    visitors[1].expected = RK_RANK_FAILED;
    visitors[1].words[0] = "did not meet rank 0";
    expect_zero(start_visitor(&visitors[1]));
    visitors[1].words[1] = "a program that is not rank 0 answers there";
    visitors[1].deadline = 1;
    pid_t process = start_visitor(&visitors[1]);
    static const char words[2048] = "220 welcome to the mail server\r\n";
    double end = rk_clock_seconds() + 0.9;
    while (rk_clock_seconds() < end) {
        int guest = accept4(listener, NULL, NULL, SOCK_NONBLOCK);
        if (guest >= 0)
            send(guest, words, sizeof words, MSG_NOSIGNAL);
        pause_for(0.001);
        if (waitpid(process, NULL, WNOHANG | WNOWAIT) > 0)
            break;
    }
    close(listener);
    expect_zero(process);
}

static void bad_places_are_refused(void **state) {
    (void)state;
    static const uint8_t agreement[32] = {0};
    static const struct rk_place places[] = {
        {.rank = 1, .world = 1},
        {.rank = -1, .world = 2, .master = "a", .port = 1},
        {.rank = 0, .world = 0},
        {.rank = 0, .world = 2, .port = 1},
        {.rank = 0, .world = 2, .master = "localhost"},
        {.rank = 0, .world = 2, .master = "localhost", .port = 65536},
        {.rank = 0, .world = 2, .master = "localhost", .listener = 1}, /* no listening socket */
    };
    struct rk_peer self = {0};
    for (size_t i = 0; i < sizeof places / sizeof places[0]; i++) {
        struct rk_job *job = (void *)&self;
        struct rk_error error = {0};
        assert_int_equal(rk_launch_meet(&places[i], NULL, agreement, &self, 1, &job, &error), RK_USAGE);
        assert_ptr_equal(job, &self);
    }
}

static void one_rank_needs_nobody(void **state) {
    (void)state;
    static const uint8_t agreement[32] = {0};
    struct rk_place place = {.world = 1};
    struct rk_peer self = {0};
    struct rk_job *job = NULL;
    struct rk_error error = {0};
    int64_t mine = 5, all = 0, lost;
    assert_int_equal(rk_launch_meet(&place, NULL, agreement, &self, 1, &job, &error), RK_OK);
    assert_int_equal(rk_job_all_gather(job, &mine, sizeof mine, &all, &error), RK_OK);
    assert_int_equal(all, 5);
    assert_int_equal(rk_job_barrier(job, &error), RK_OK);
    assert_false(rk_job_lost_peer(job, &lost));
    assert_true(job->one_host);
    assert_int_equal(job->peers[0].process, getpid());
    assert_int_equal(job->place.local_world, 1);
    rk_job_free(job);
}

/* ---- after the meeting ---- */

static int gather_large(const struct rk_place *place, void *context) {
    (void)context;
    enum { BYTES = 3000017 };
    struct rk_job *job = rank_meet(place, 20);
    struct rk_error error = {0};
    unsigned char *mine = malloc(BYTES), *all = malloc((size_t)BYTES * (size_t)place->world);
    for (int round = 0; round < 3; round++) {
        memset(mine, (int)place->rank * 7 + round, BYTES);
        RANK_CHECK_OK(rk_job_all_gather(job, mine, BYTES, all, &error), error);
        for (int64_t rank = 0; rank < place->world; rank++)
            for (int64_t i = 0; i < BYTES; i += 997)
                RANK_CHECK(all[rank * BYTES + i] == (unsigned char)(rank * 7 + round));
        RANK_CHECK_OK(rk_job_barrier(job, &error), error);
    }
    RANK_CHECK(job->place.local_rank == place->rank && job->place.local_world == place->world);
    free(mine);
    free(all);
    rk_job_free(job);
    return 0;
}

static void large_gathers(void **state) {
    (void)state;
    ranks_run(4, gather_large, NULL);
}

enum trouble { DIES, SLEEPS, OTHER_SIZE };

static int gather_in_trouble(const struct rk_place *place, void *context) {
    enum trouble trouble = *(const enum trouble *)context;
    struct rk_job *job = rank_meet(place, 10);
    struct rk_error error = {0};
    job->deadline_seconds = 0.5;
    RANK_CHECK_OK(rk_job_barrier(job, &error), error);
    if (place->rank == 2 && trouble == DIES)
        _exit(0);
    if (place->rank == 2 && trouble == SLEEPS) {
        pause_for(1.5);
        rk_job_free(job);
        return 0;
    }
    char mine[8] = {0}, all[8 * RANKS_MAX];
    double start = rk_clock_seconds();
    enum rk_status status =
        rk_job_all_gather(job, mine, place->rank == 2 && trouble == OTHER_SIZE ? 4 : 8, all, &error);
    RANK_CHECK(rk_clock_seconds() - start < 1.2);
    RANK_CHECK(status == (trouble == OTHER_SIZE ? RK_ERROR : RK_RANK_FAILED));
    if (trouble == SLEEPS)
        RANK_CHECK(strstr(error.text, ": 2") != NULL);
    else if (trouble == DIES)
        RANK_CHECK(strstr(error.text, "rank 2 ") != NULL);
    int64_t lost;
    if (trouble == DIES && place->rank == 0)
        RANK_CHECK(rk_job_lost_peer(job, &lost) && lost > 0);
    rk_job_free(job);
    return 0;
}

static void gathers_name_the_rank_in_trouble(void **state) {
    (void)state;
    for (enum trouble trouble = DIES; trouble <= OTHER_SIZE; trouble++)
        ranks_run(4, gather_in_trouble, &trouble);
}

int main(void) {
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(ranks_meet_by_every_name),
        cmocka_unit_test(a_late_rank_0_is_waited_for),
        cmocka_unit_test(strangers_do_no_harm),
        cmocka_unit_test(missing_ranks_are_named),
        cmocka_unit_test(disagreement_is_told_to_all),
        cmocka_unit_test(a_port_in_use_is_said_so),
        cmocka_unit_test(bad_places_are_refused),
        cmocka_unit_test(one_rank_needs_nobody),
        cmocka_unit_test(large_gathers),
        cmocka_unit_test(gathers_name_the_rank_in_trouble),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
