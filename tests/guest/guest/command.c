#include "command.h"
#include "agent.h"
#include "program.h"
#include "toil.h"
#include "vsock.h"

#define MOST_WORDS 64
#define TICK_MS 50
#define TICK_NS (TICK_MS * 1000000u)
#define KILLED 9
#define NOT_FOUND TEXT("{\"reply\":\"error\",\"code\":\"not_found\",\"message\":\"there is no such program\"}")

struct command {
    enum doing doing;
    /* How much is still to be said. */
    uint64_t left;
    /* The tick at which it ends by itself, and that at which its time is up; 0 for never. */
    uint32_t until, limit;
};

static struct command commands[MOST_CONNECTIONS];
static uint32_t now = 1;
static bool timer_runs;
static uint8_t yes[ROOM];

void command_prepare(void)
{
    memset(yes, 'y', sizeof yes);
}

void command_forget(unsigned connection)
{
    if (commands[connection].doing == TOILING)
        toil_end();
    commands[connection].doing = NOTHING;
}

bool command_runs(unsigned connection)
{
    return commands[connection].doing != NOTHING;
}

static void over(unsigned connection, struct text how, uint64_t number, bool timed_out)
{
    static struct message message;
    command_forget(connection);
    message.length = 0;
    add(&message, TEXT("{\"reply\":\"exited\",\"status\":{\""));
    add(&message, how);
    add(&message, TEXT("\":"));
    add_number(&message, number);
    add(&message, timed_out ? TEXT("},\"timed_out\":true}") : TEXT("},\"timed_out\":false}"));
    reply(connection, &message);
}

void exited(const struct call *call, uint64_t code)
{
    over(call->connection, TEXT("code"), code, false);
}

void go_on(const struct call *call, enum doing doing, uint64_t ms)
{
    struct command *command = &commands[call->connection];
    struct text rest = call->rest;
    *command = (struct command){.doing = doing, .until = ms > 0 ? now + ms / TICK_MS + 1 : 0};
    if (cut_to(&rest, TEXT("\"timeout_ms\":")))
        command->limit = now + number_of(rest) / TICK_MS + 1;
    if (!timer_runs && (command->until > 0 || command->limit > 0)) {
        timer_runs = true;
        timer_set(TICK_NS);
    }
}

void go_on_saying(const struct call *call, uint64_t count)
{
    go_on(call, SAYING, 0);
    commands[call->connection].left = count;
}

void command_start(unsigned connection, struct text request)
{
    static struct text words[MOST_WORDS];
    static uint8_t bytes[ROOM];
    uint8_t *room = bytes;
    unsigned count = 0;
    cut(&request, TEXT(",\"argv\":["));
    while (request.length > 0 && *request.at == '"' && count < MOST_WORDS) {
        words[count] = unescaped(cut_string(&request), room);
        room += words[count++].length;
        cut(&request, TEXT(","));
    }
    run_t *run = count > 0 ? program_find(words[0]) : NULL;
    if (run == NULL)
        return reply_text(connection, NOT_FOUND);
    reply_text(connection, TEXT("{\"reply\":\"started\",\"pid\":42}"));
    run(&(struct call){connection, words, count, count > 1 ? words[1] : TEXT(""), request});
}

void command_signal(unsigned connection, struct text request)
{
    cut(&request, TEXT(",\"signal\":"));
    if (command_runs(connection))
        over(connection, TEXT("signal"), number_of(request), false);
}

void command_input(unsigned connection, struct text input)
{
    static struct message message;
    if (commands[connection].doing != HEARING)
        return;
    message.length = 0;
    add(&message, TEXT("{\"reply\":\"stdin_credit\",\"bytes\":"));
    add_number(&message, input.length);
    add(&message, TEXT("}"));
    reply(connection, &message);
    write_out(connection, STDOUT, input);
}

void command_input_end(unsigned connection)
{
    if (commands[connection].doing == HEARING)
        over(connection, TEXT("code"), 0, false);
}

static bool is_over(uint32_t tick)
{
    return tick > 0 && tick <= now;
}

bool command_continue(unsigned connection)
{
    struct command *command = &commands[connection];
    if (command->doing == NOTHING)
        return false;
    if (is_over(command->limit)) {
        over(connection, TEXT("signal"), KILLED, true);
    } else if (command->doing == SAYING && command->left > 0) {
        uint32_t part = command->left < sizeof yes ? command->left : sizeof yes;
        write_static(connection, STDOUT, (struct text){yes, part});
        command->left -= part;
    } else if (command->doing == SAYING || is_over(command->until)) {
        over(connection, TEXT("code"), 0, false);
    } else {
        return false;
    }
    return true;
}

void command_time(void)
{
    if (!timer_over())
        return;
    now++;
    timer_runs = false;
    for (unsigned connection = 0; connection < vsock_connections(); connection++) {
        const struct command *command = &commands[connection];
        if (command->doing == NOTHING || (command->until == 0 && command->limit == 0))
            continue;
        timer_runs = true;
        if (is_over(command->until) || is_over(command->limit))
            vsock_wake(connection);
    }
    if (timer_runs)
        timer_set(TICK_NS);
}
