import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.stream.Collectors;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.SubscriptionPattern;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;

/**
 * Group members for tests/clients/groups_members.py. Commands on standard input, tab separated:
 * "start NAME topics|regex WHAT key=value ...", "stop NAME". Each thing that happens to a member is
 * a line: name, System.nanoTime(), what, details.
 */
public final class Members {
    private static final Map<String, Member> MEMBERS = new HashMap<>();

    public static void main(String[] args) throws Exception {
        BufferedReader commands = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = commands.readLine(); line != null; line = commands.readLine()) {
            String[] words = line.split("\t");
            if (words[0].equals("start")) {
                Member member = new Member(words);
                MEMBERS.put(words[1], member);
                member.start();
            } else if (words[0].equals("stop")) {
                MEMBERS.remove(words[1]).stopping = true;
            }
        }
        System.exit(0);
    }

    private static void say(String name, String what, String details) {
        synchronized (System.out) {
            System.out.println(name + "\t" + System.nanoTime() + "\t" + what + "\t" + details);
        }
    }

    private static final class Member extends Thread implements ConsumerRebalanceListener {
        private final String name;
        private final boolean regex;
        private final String subscription;
        private final Map<String, Object> config = new HashMap<>();
        private volatile boolean stopping;
        private int generation = -1;

        Member(String[] words) {
            name = words[1];
            regex = words[2].equals("regex");
            subscription = words[3];
            for (int at = 4; at < words.length; at++) {
                int cut = words[at].indexOf('=');
                config.put(words[at].substring(0, cut), words[at].substring(cut + 1));
            }
            config.put("key.deserializer", ByteArrayDeserializer.class);
            config.put("value.deserializer", ByteArrayDeserializer.class);
            setDaemon(true);
        }

        @Override
        public void run() {
            try (KafkaConsumer<byte[], byte[]> consumer = new KafkaConsumer<>(config)) {
                if (regex) {
                    consumer.subscribe(new SubscriptionPattern(subscription), this);
                } else {
                    consumer.subscribe(List.of(subscription.split(",")), this);
                }
                while (!stopping) {
                    for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(50))) {
                        String value = new String(record.value(), StandardCharsets.UTF_8);
                        say(name, "read", record.topic() + "\t" + record.partition() + "\t" + record.offset() + "\t" + value);
                    }
                    int now = consumer.groupMetadata().generationId();
                    if (now != generation) {
                        generation = now;
                        say(name, "generation", Integer.toString(now));
                    }
                }
            } catch (Throwable error) {
                say(name, "error", error.toString().replace('\n', ' ').replace('\t', ' '));
            }
            say(name, "closed", "");
        }

        @Override
        public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
            say(name, "assigned", words(partitions));
        }

        @Override
        public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
            say(name, "revoked", words(partitions));
        }

        @Override
        public void onPartitionsLost(Collection<TopicPartition> partitions) {
            say(name, "lost", words(partitions));
        }

        private static String words(Collection<TopicPartition> partitions) {
            return partitions.stream().map(one -> one.topic() + ":" + one.partition()).collect(Collectors.joining(","));
        }
    }
}
