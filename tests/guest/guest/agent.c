#include "agent.h"
#include "command.h"
#include "cpus.h"
#include "disk.h"
#include "program.h"
#include "toil.h"
#include "vsock.h"

#define FRAME 5
#define HELLO TEXT("{\"reply\":\"hello\",\"generation\":1,\"agent\":\"native\",\"kernel\":\"native\",\"boot_ms\":1}")
#define DONE TEXT("{\"reply\":\"done\"}")

/* How much is still to come of a frame of input. */
static uint32_t input_left[MOST_CONNECTIONS];

void add(struct message *message, struct text text)
{
    uint32_t room = MESSAGE_MOST - message->length;
    uint32_t length = text.length < room ? text.length : room;
    memcpy(message->bytes + message->length, text.at, length);
    message->length += length;
}

void add_number(struct message *message, uint64_t number)
{
    uint8_t text[20];
    uint32_t length = digits(number, text);
    add(message, (struct text){text, length});
}

static void begin_frame(unsigned connection, enum channel channel, uint32_t length)
{
    uint8_t frame[FRAME] = {length, length >> 8, length >> 16, length >> 24, channel};
    say(connection, frame, sizeof frame);
}

void write_out(unsigned connection, enum channel channel, struct text text)
{
    begin_frame(connection, channel, text.length);
    say(connection, text.at, text.length);
}

void write_static(unsigned connection, enum channel channel, struct text text)
{
    begin_frame(connection, channel, text.length);
    say_static(connection, text.at, text.length);
}

void reply_text(unsigned connection, struct text text)
{
    write_out(connection, MESSAGES, text);
}

void reply(unsigned connection, const struct message *message)
{
    reply_text(connection, (struct text){message->bytes, message->length});
}

static void renew(unsigned connection, struct text request)
{
    static struct message message;
    program_renew(request);
    message.length = 0;
    add(&message, TEXT("{\"reply\":\"renewed\",\"took_us\":1,\"monotonic_ns\":"));
    /* Ticks and not nanoseconds; nobody has asked this guest for the time yet. */
    add_number(&message, ticks());
    add(&message, TEXT("}"));
    reply(connection, &message);
}

/* The value of any code is its text. */
static void evaluate(unsigned connection, struct text request)
{
    static const struct text before = TEXT("{\"reply\":\"evaluated\",\"value\":\"");
    static const struct text after = TEXT("\",\"truncated\":false,\"interpreter\":\"alive\"}");
    cut(&request, TEXT(",\"code\":"));
    struct text code = cut_string(&request);
    begin_frame(connection, MESSAGES, before.length + code.length + after.length);
    say(connection, before.at, before.length);
    say(connection, code.at, code.length);
    say(connection, after.at, after.length);
}

static void end(unsigned connection, enum ending ending)
{
    reply_text(connection, DONE);
    say_static(connection, NULL, 0);
    vsock_drain();
    machine_end(ending);
}

static void hear_message(unsigned connection, struct text request)
{
    if (!cut(&request, TEXT("{\"request\":")))
        return hang_up(connection);
    struct text name = cut_string(&request);
    if (equal(name, TEXT("exec")))
        command_start(connection, request);
    else if (equal(name, TEXT("signal")))
        command_signal(connection, request);
    else if (equal(name, TEXT("renew")))
        renew(connection, request);
    else if (equal(name, TEXT("eval")))
        evaluate(connection, request);
    else if (equal(name, TEXT("hello")))
        reply_text(connection, HELLO);
    else if (equal(name, TEXT("warm")))
        reply_text(connection, TEXT("{\"reply\":\"warmed\",\"pid\":2,\"took_us\":1}"));
    else if (equal(name, TEXT("ping")) || equal(name, TEXT("set_clock")))
        reply_text(connection, DONE);
    else if (equal(name, TEXT("poweroff")))
        end(connection, POWER_OFF);
    else if (equal(name, TEXT("reboot")))
        end(connection, RESTART);
    else if (!equal(name, TEXT("resize")))
        reply_text(connection, TEXT("{\"reply\":\"error\",\"code\":\"protocol\",\"message\":\"not known here\"}"));
}

/* Takes the next frame, or a part of one that is input; false when it has not come. */
static bool hear_frame(unsigned connection)
{
    struct connection *from = &connections[connection];
    uint32_t *left = &input_left[connection];
    if (*left > 0 && from->waiting > 0) {
        uint32_t part = from->waiting < *left ? from->waiting : *left;
        command_input(connection, (struct text){from->came, part});
        take(connection, part);
        *left -= part;
        return true;
    }
    if (*left > 0 || from->waiting < FRAME)
        return false;
    uint32_t length;
    memcpy(&length, from->came, sizeof length);
    switch (from->came[FRAME - 1]) {
    case MESSAGES:
        if (length > ROOM - FRAME) {
            hang_up(connection);
            return false;
        }
        if (from->waiting < FRAME + length)
            return false;
        hear_message(connection, (struct text){from->came + FRAME, length});
        take(connection, FRAME + length);
        return true;
    case STDIN:
        take(connection, FRAME);
        *left = length;
        if (length == 0)
            command_input_end(connection);
        return true;
    default:
        hang_up(connection);
        return false;
    }
}

void agent_forget(unsigned connection)
{
    input_left[connection] = 0;
    command_forget(connection);
}

bool agent_serve(unsigned connection)
{
    do {
        if (!may_say(connection))
            return true;
    } while (command_continue(connection) || hear_frame(connection));
    if (connections[connection].ended && !command_runs(connection))
        hang_up(connection);
    return false;
}

/* From entry.S: once, and whenever there may be something to do. */
void start(void)
{
    machine_start();
    cpus_start();
    command_prepare();
    disk_start();
    program_prepare();
    vsock_start();
}

void attend(void)
{
    do {
        machine_awake();
        command_time();
        vsock_attend();
    } while (toil_round());
}
